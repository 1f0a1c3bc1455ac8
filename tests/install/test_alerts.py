"""Alerts use metrics that exist, of one installation, and link to a runbook."""

import re
from typing import Any

import pytest
import yaml

from holdfast.duties.duty import Duty
from holdfast.install import Values
from holdfast.install.monitoring import rule, service_monitor
from holdfast.metrics import Metrics
from holdfast.running.terms import stale_after
from install.helm import REPO

VALUES = Values(namespace="ns", install="blue", dsn_secret="db", metrics=True)
ALERTS: list[dict[str, Any]] = rule(VALUES)["spec"]["groups"][0]["rules"]
NAMES = [each["alert"] for each in ALERTS]
SCRAPE = 15.0  # seconds


@pytest.mark.parametrize("alert", ALERTS, ids=NAMES)
def test_an_alert_asks_for_metrics_that_exist_and_for_this_installation(alert: dict[str, Any]) -> None:
    exported = {f"{family.name}{'_total' if family.type == 'counter' else ''}" for family in Metrics().registry.collect()}
    asked = re.findall(r"\b(holdfast_[a-z_]+)(\{[^}]*\})?", alert["expr"])
    assert asked
    assert {name for name, _ in asked} <= exported
    assert all('namespace="ns",job="blue"' in selector for _, selector in asked)
    assert "SELECTOR" not in yaml.dump(alert)


@pytest.mark.parametrize("alert", ALERTS, ids=NAMES)
def test_an_alert_names_what_to_do_and_where_to_read_on(alert: dict[str, Any]) -> None:
    assert alert["labels"]["severity"] in ("critical", "warning")
    notes = alert["annotations"]
    assert notes["summary"].endswith(".")
    assert notes["description"].endswith(".")
    file, _, section = notes["runbook"].partition("#")
    headings = re.findall(r"^## (.+)$", (REPO / file).read_text(encoding="utf-8"), re.MULTILINE)
    assert section in {heading.lower().replace(" ", "-") for heading in headings}


def test_every_runbook_has_an_alert() -> None:
    headings = re.findall(r"^## (.+)$", (REPO / "docs" / "runbooks.md").read_text(encoding="utf-8"), re.MULTILINE)
    led_to = {each["annotations"]["runbook"].partition("#")[2] for each in ALERTS}
    assert led_to == {heading.lower().replace(" ", "-") for heading in headings}


def test_a_duty_is_dark_only_after_others_had_their_chance_to_take_it_over() -> None:
    dark = next(each for each in ALERTS if each["alert"] == "HoldfastDarkDuty")["expr"]
    for duty in Duty.__subclasses__():
        (after,) = [
            float(bound)
            for how, names, bound in re.findall(r'duty(=|!~)"([^"]+)"\}\) > (\d+)', dark)
            if (duty.name == names) == (how == "=") and (how == "=" or duty.name not in names.split("|"))
        ]
        assert after > stale_after(duty.period) + SCRAPE, duty.name


def test_scraping_carries_a_token_from_a_secret() -> None:
    (endpoint,) = service_monitor(VALUES)["spec"]["endpoints"]
    assert endpoint["authorization"]["credentials"] == {"name": "blue-metrics", "key": "token"}
