{{/* The installation's name, which is on every object. */}}
{{- define "holdfast.install" -}}
{{- $name := .Values.install | default .Release.Name -}}
{{- if or (not (regexMatch "^[a-z]([-a-z0-9]{0,38}[a-z0-9])?$" $name)) (has $name (list "default" "kubernetes")) -}}
{{- fail (printf "install %q: must be a-z, 0-9 and '-', at most 40 characters, and neither default nor kubernetes" $name) -}}
{{- end -}}
{{- $name -}}
{{- end }}

{{/* The labels of the replicas. The workers' network policies select by them. */}}
{{- define "holdfast.labels" -}}
app.kubernetes.io/name: holdfast
app.kubernetes.io/instance: {{ include "holdfast.install" . }}
{{- end }}

{{- define "holdfast.postgres.labels" -}}
app.kubernetes.io/name: holdfast-postgres
app.kubernetes.io/instance: {{ include "holdfast.install" . }}
{{- end }}

{{- define "holdfast.image" -}}
{{ .Values.image | default (printf "holdfast:%s" .Chart.AppVersion) }}
{{- end }}

{{- define "holdfast.dsnSecret" -}}
{{- if .Values.postgres.throwAway.enabled -}}
{{- if .Values.postgres.dsnSecret -}}
{{- fail "postgres: either dsnSecret for a Postgres of your own, or throwAway, not both" -}}
{{- end -}}
{{ include "holdfast.install" . }}-postgres
{{- else -}}
{{ required "postgres.dsnSecret: name the Secret that holds the DSN of your Postgres, or set postgres.throwAway.enabled to try things out" .Values.postgres.dsnSecret }}
{{- end -}}
{{- end }}

{{/* The name of cluster-wide objects. It is unique, because names of namespaces and installations contain no colon. */}}
{{- define "holdfast.clusterName" -}}
holdfast:{{ .Release.Namespace }}:{{ include "holdfast.install" . }}
{{- end }}

{{- define "holdfast.subjects" -}}
- kind: ServiceAccount
  name: {{ include "holdfast.install" . }}
  namespace: {{ .Release.Namespace }}
{{- end }}
