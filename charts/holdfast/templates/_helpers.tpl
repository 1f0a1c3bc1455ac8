{{/* The installation's name, which is on every object. */}}
{{- define "holdfast.install" -}}
{{- $name := .Values.install | default .Release.Name -}}
{{- if or (not (regexMatch "^[a-z]([-a-z0-9]{0,38}[a-z0-9])?$" $name)) (has $name (list "default" "kubernetes")) -}}
{{- fail (printf "install %q: must be a-z, 0-9 and '-', at most 40 characters, and neither default nor kubernetes" $name) -}}
{{- end -}}
{{- $name -}}
{{- end }}

{{/* The workers' namespace. An upgrade must not change it, because Holdfast would take all its workers for lost. */}}
{{- define "holdfast.workersNamespace" -}}
{{- $name := .Values.workers.namespace | default (printf "%s-workers" .Release.Namespace) -}}
{{- if gt (len $name) 63 -}}
{{- fail (printf "workers.namespace %q: a name has at most 63 characters; choose another" $name) -}}
{{- end -}}
{{- $running := lookup "apps/v1" "Deployment" .Release.Namespace (include "holdfast.install" .) -}}
{{- range (dig "spec" "template" "spec" "containers" list $running) -}}
{{- range .env -}}
{{- if and (eq .name "HOLDFAST_NAMESPACE") (ne .value $name) -}}
{{- fail (printf "workers.namespace: the workers of this installation run in %q. Keep them there: --set workers.namespace=%s. To move to %q, delete all pools, wait until their workers are gone, uninstall, and install again." .value .value $name) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- $name -}}
{{- end }}

{{- define "holdfast.metricsSecret" -}}
{{ .Values.metrics.tokenSecret | default (printf "%s-metrics" (include "holdfast.install" .)) }}
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
