"""Build the objects for the Prometheus operator: what to scrape, and when to alert a person."""

from importlib.resources import files

import yaml

from .values import Json, Values

SELECTOR = "SELECTOR"  # placeholder in alerts.yaml for the label selector of this installation


def service_monitor(values: Values) -> Json:
    """Returns the ServiceMonitor. It needs a token, because /metrics requires one like every other route. It is never the
    admin's, because Prometheus' configuration is readable by many."""
    credentials = {"name": values.scrape_secret, "key": "token"}
    endpoint = {
        "port": "http",
        "path": "/metrics",
        "interval": "15s",
        "authorization": {"type": "Bearer", "credentials": credentials},
    }
    return {
        "apiVersion": "monitoring.coreos.com/v1",
        "kind": "ServiceMonitor",
        "metadata": values.meta,
        "spec": {"selector": {"matchLabels": values.labels}, "endpoints": [endpoint]},
    }


def rule(values: Values) -> Json:
    text = (files("holdfast.install") / "alerts.yaml").read_text(encoding="utf-8")
    alerts = yaml.safe_load(text.replace(SELECTOR, f'namespace="{values.namespace}",job="{values.install}"'))
    return {
        "apiVersion": "monitoring.coreos.com/v1",
        "kind": "PrometheusRule",
        "metadata": values.meta,
        "spec": {"groups": [{"name": "holdfast", "rules": alerts}]},
    }
