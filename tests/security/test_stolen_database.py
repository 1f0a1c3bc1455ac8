"""A thief has the files of the database, its WAL or a backup. A claim's secrets are not in them, and are of no use there."""

import hashlib
import json
import mmap
import secrets
from pathlib import Path
from typing import Any

import msgspec
import pytest

from holdfast.agent.messages import Assignment
from holdfast.api.encryption import CannotDecrypt, Cipher
from holdfast.model.activation import MAX_ACTIVATIONS
from served_api import KEY, Stage

STORED = "SELECT secrets FROM holdfast.claim_secret WHERE claim_id = $1"


def claim(stage: Stage, **request: Any) -> dict[str, Any]:
    return stage.claim(pool="agents", command=["true"], wait="0s", **request)


def poll(stage: Stage, worker: str = "w-agent", **report: Any) -> dict[str, Any]:
    body = {"doing": "idle", "wait": 10, **report}
    answer = stage.ask("POST", "/v1/worker/poll", body, token=stage.agent_token(worker))
    assert answer.status == 200, answer.raw
    return dict(answer.json)


def files_with(folder: Path, text: str) -> list[str]:
    """Returns the files below the folder that contain the text."""
    found = []
    for path in folder.rglob("*"):
        if path.is_file() and path.stat().st_size:
            with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
                if content.find(text.encode()) >= 0:
                    found.append(str(path.relative_to(folder)))
    return found


def test_no_file_of_postgres_contains_a_secret_after_its_acknowledgement(stage: Stage) -> None:
    secret, visible = f"secret-{secrets.token_hex(12)}", f"visible-{secrets.token_hex(12)}"
    claim(stage, secrets={"PASSWORD": secret}, env={"COLOUR": visible}, key="build-7")
    given = poll(stage)["assignment"]
    assert given["secrets"] == {"PASSWORD": secret}, "its command gets it"
    answer = stage.ask("POST", "/v1/worker/ack", {"fence": given["fence"], "endpoint": None}, token=stage.agent_token())
    assert answer.status == 200, answer.raw
    stage.do(stage.store.db.rows("CHECKPOINT"))
    folder = Path(stage.do(stage.store.db.value("SHOW data_directory")))
    shown = files_with(folder, visible)
    assert any(name.startswith("base/") for name in shown), "the search finds what is in a table"
    assert any(name.startswith("pg_wal/") for name in shown), "the search finds what is in the WAL"
    assert files_with(folder, secret) == []


def test_the_secrets_of_one_claim_are_useless_for_another(stage: Stage) -> None:
    """A tenant that can write to the database could otherwise let its own claim receive another tenant's secrets."""
    stage.do(stage.spawn("p-agents", *(f"w-agent-{n}" for n in range(MAX_ACTIVATIONS))))
    victim = claim(stage, secrets={"PASSWORD": "hunter2"}, deadline="1h")
    thief = claim(stage, secrets={"PASSWORD": "x"}, deadline="1h")
    moved = "UPDATE holdfast.claim_secret SET secrets = (SELECT secrets FROM holdfast.claim_secret WHERE claim_id = $1)"
    stage.do(stage.store.db.rows(f"{moved} WHERE claim_id = $2", victim["id"], thief["id"]))
    worker = stage.do(stage.store.db.value("SELECT worker_id FROM holdfast.claim WHERE id = $1", thief["id"]))
    answer = poll(stage, worker)
    assert (answer["do"], answer.get("assignment")) == ("nothing", None)
    seen = stage.ask("GET", f"/v1/claims/{thief['id']}", token="acme").json
    assert (seen["state"], seen["worker"]) == ("waiting", None)
    assert "cannot be decrypted" in seen["reason"]
    assert "hunter2" not in json.dumps(stage.ask("GET", f"/v1/explain/claim/{thief['id']}").json)


def test_a_short_secret_cannot_be_found_by_trying_all_of_them(stage: Stage) -> None:
    """The hash of a request is stored with its key. Everything else in the request can be read beside it."""
    request = {"pool": "agents", "command": ["true"], "wait": "0s", "key": "build-7"}
    made = claim(stage, secrets={"PIN": "0042"}, key="build-7")
    stored = stage.do(stage.store.db.value("SELECT request_hash FROM holdfast.claim WHERE id = $1", made["id"]))
    assert stored not in {_hash_before(made, pin) for pin in ("0041", "0042")}
    again = stage.ask("POST", "/v1/claims", {**request, "secrets": {"PIN": "0042"}}, token="acme")
    assert (again.status, again.json["id"]) == (200, made["id"])
    other = stage.ask("POST", "/v1/claims", {**request, "secrets": {"PIN": "0043"}}, token="acme")
    assert (other.status, other.json["code"]) == (409, "key-taken")


def _hash_before(made: dict[str, Any], pin: str) -> str:
    """Returns the hash that the release before stored for this request."""
    request = {
        "pool": "agents", "tenant": made["tenant"], "key": "build-7", "command": ["true"], "payload": None, "env": {},
        "secrets": {"PIN": pin}, "priority": 0, "wait": "0s", "deadline": "1h", "lease": None, "maxDuration": None,
        "parkTTL": None, "retry": None,
    }  # fmt: skip
    return hashlib.sha256(json.dumps(request, separators=(",", ":")).encode()).hexdigest()[:32]


@pytest.mark.parametrize("deleted_pool", [False, True])
def test_a_claim_that_the_release_before_stored_keeps_its_key_and_gets_its_secrets(stage: Stage, deleted_pool: bool) -> None:
    made = claim(stage, secrets={"PIN": "0042"}, key="build-7")
    rows = stage.store.db.rows
    stage.do(rows("UPDATE holdfast.claim SET request_hash = $2 WHERE id = $1", made["id"], _hash_before(made, "0042")))
    stage.do(rows("""UPDATE holdfast.claim_secret SET secrets = '{"PIN": "0042"}' WHERE claim_id = $1""", made["id"]))
    assert poll(stage)["assignment"]["secrets"] == {"PIN": "0042"}
    if deleted_pool:
        assert stage.ask("DELETE", "/v1/pools/agents").status in (200, 202, 204)
    again = claim(stage, secrets={"PIN": "0042"}, key="build-7")
    assert again["id"] == made["id"]


def test_the_release_before_cannot_take_encrypted_secrets_for_variables(stage: Stage) -> None:
    """It sends on what is stored. An agent refuses secrets that are no object, so that no command starts without its secrets."""
    made = claim(stage, secrets={"PIN": "0042"})
    stored = json.loads(stage.do(stage.store.db.value(STORED, made["id"])))
    assert isinstance(stored, str)
    assert "0042" not in stored
    sent = {"claim": made["id"], "fence": 1, "tenant": "acme", "secrets": stored}
    with pytest.raises(msgspec.ValidationError):
        msgspec.convert(sent, Assignment)


# The cipher itself


def test_what_was_encrypted_is_read_only_with_the_same_key_for_the_same_claim() -> None:
    given = {"A": "it's", "B": "ünï\ncode", "C": ""}
    hidden = Cipher(KEY).encrypt("c-1", given)
    assert Cipher(KEY).decrypt("c-1", hidden) == given
    assert Cipher(KEY).encrypt("c-1", given) != hidden, "equal secrets do not look equal"
    for cipher, id_ in ((Cipher(b"another key of 32 bytes........."), "c-1"), (Cipher(KEY), "c-2")):
        with pytest.raises(CannotDecrypt):
            cipher.decrypt(id_, hidden)


@pytest.mark.parametrize("damage", ["", "1.", "1.AAAA", "2.{}", "A{}", "1.{}é", "no base64!"])
def test_damaged_secrets_are_refused_without_showing_them(damage: str) -> None:
    hidden = Cipher(KEY).encrypt("c-1", {"A": "b"})
    with pytest.raises(CannotDecrypt) as refused:
        Cipher(KEY).decrypt("c-1", damage.format(hidden))
    assert hidden not in str(refused.value)


def test_every_changed_byte_is_noticed() -> None:
    hidden = Cipher(KEY).encrypt("c-1", {"A": "b"})
    for at in range(len("1."), len(hidden.rstrip("=")) - 1):
        changed = hidden[:at] + ("A" if hidden[at] != "A" else "B") + hidden[at + 1 :]
        with pytest.raises(CannotDecrypt):
            Cipher(KEY).decrypt("c-1", changed)
