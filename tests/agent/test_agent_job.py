"""The agent of a job starts its command once, only when it is allowed to, and never gives up its result."""

import json
import os
import stat
from collections.abc import Callable
from pathlib import Path

from agent_control_plane import Plane
from running_agent import Running, waits_for

from holdfast.local.outputs import Outputs
from waiting import always, eventually

Planes = Callable[..., Plane]
Agents = Callable[..., Running]


def shell(script: str) -> list[str]:
    return ["sh", "-c", script]


def alive(pid: int) -> bool:
    try:
        return "Z" not in Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return False


def test_a_command_runs_and_its_exit_code_and_output_are_kept(planes: Planes, agent: Agents) -> None:
    plane = planes()
    plane.assign(command=shell("echo out; echo err >&2; exit 3"))
    running = agent(plane)
    assert running.exit_code() == 0
    assert plane.received("result") == [{"fence": 7, "exit_code": 3, "reason": ""}]
    pieces = Outputs(running.outputs).read("c-1", 0, 100).pieces()
    assert sorted((stream, data) for _, stream, data in pieces) == [("stderr", b"err\n"), ("stdout", b"out\n")]
    kept = json.loads((running.work / "result.json").read_text())
    assert kept == {"claim": "c-1", "fence": 7, "exit_code": 3}
    assert not (running.outputs / "c-1.truncated").exists()


def test_it_says_what_it_does(planes: Planes, agent: Agents) -> None:
    plane = planes()
    running = agent(plane)
    eventually(lambda: plane.doing() == "idle")
    gate = running.folder / "gate"
    plane.assign(command=shell(waits_for(gate)))
    eventually(lambda: plane.doing() == "running")
    report = plane.polls[-1]
    assert (report["claim"], report["fence"], report["tenant"]) == ("c-1", 7, "acme")
    assert plane.polls[0]["claim"] is None
    gate.touch()
    assert running.exit_code() == 0


def test_the_command_waits_for_the_acknowledgement_to_be_accepted(planes: Planes, agent: Agents) -> None:
    plane = planes()
    plane.hold_acks = True
    running = agent(plane)
    mark = running.folder / "started"
    plane.assign(command=shell(f"touch {mark}"))
    eventually(lambda: plane.received("ack"))
    eventually(lambda: plane.doing() == "activating")  # the agent polls while it waits
    assert not mark.exists()
    assert not (running.work / "groups").exists()
    plane.hold_acks = False
    assert running.exit_code() == 0
    assert mark.exists()


def test_a_stale_acknowledgement_starts_nothing_and_its_worker_serves_no_other_tenant(planes: Planes, agent: Agents) -> None:
    plane = planes()
    plane.accept = False
    running = agent(plane)
    plane.assign(command=shell("touch started"))
    assert running.exit_code() == 1
    assert "no longer its own" in plane.received("failed")[0]["reason"]
    assert len(plane.received("ack")) == 1
    assert not list((running.work / "work").iterdir())


def test_a_result_outlives_an_outage_and_is_sent_to_the_second_server(planes: Planes, agent: Agents) -> None:
    first, second = planes(), planes()
    running = agent(first)
    gate = running.folder / "gate"
    first.assign(command=shell(f"{waits_for(gate)}; exit 5"))
    eventually(lambda: first.acked)
    first.down()
    second.assignment, second.acked = first.assignment, first.acked
    gate.touch()
    eventually(lambda: (running.work / "result.json").exists())
    eventually(lambda: "cut off" in running.log)
    assert running.popen.poll() is None
    running.servers_file.write_text(f"{first.url}\n{second.url}\n")
    assert running.exit_code() == 0
    assert second.received("result") == [{"fence": 7, "exit_code": 5, "reason": ""}]


def test_a_busy_agent_does_not_end_itself_for_lack_of_a_server(planes: Planes, agent: Agents) -> None:
    plane = planes()
    running = agent(plane, HOLDFAST_LONELY_SECONDS="0.3")
    gate = running.folder / "gate"
    plane.assign(command=shell(waits_for(gate)))
    eventually(lambda: plane.acked)
    port = plane.port
    plane.down()
    eventually(lambda: "cut off" in running.log)
    # 5 times the silence after which a free agent ends
    always(lambda: running.popen.poll() is None, 1.5, "the busy agent lives on")
    gate.touch()
    eventually(lambda: (running.work / "result.json").exists())
    plane.up(port)
    assert running.exit_code() == 0
    assert plane.received("result")


def test_a_free_agent_without_a_server_ends_itself(planes: Planes, agent: Agents) -> None:
    plane = planes()
    running = agent(plane, HOLDFAST_LONELY_SECONDS="0.5")
    eventually(lambda: plane.doing() == "idle")
    plane.down()
    assert running.exit_code() == 1
    assert "no server has accepted a call" in running.log


def test_of_an_output_beyond_the_bound_the_beginning_and_the_end_are_kept(planes: Planes, agent: Agents) -> None:
    plane = planes(output_limit=1000)
    plane.assign(command=shell("echo first; head -c 3000000 /dev/zero; echo last; exit 4"))
    running = agent(plane)
    assert running.exit_code() == 0
    assert plane.received("result")[0]["exit_code"] == 4
    outputs = Outputs(running.outputs)
    beginning = outputs.read("c-1", 0, 10_000)
    assert (beginning.data, beginning.size) == (b"first\n" + bytes(494), 3_000_011)
    end = outputs.read("c-1", beginning.size - 10, 10_000)
    assert end.data == bytes(5) + b"last\n"
    assert beginning.missing >= 3_000_011 - 1000


def test_a_free_agent_leaves_at_once_on_sigterm(planes: Planes, agent: Agents) -> None:
    plane = planes()
    running = agent(plane)
    eventually(lambda: plane.doing() == "idle")
    running.term()
    assert running.exit_code(3) == 0
    assert plane.doing() == "draining"


def test_a_busy_agent_drains_on_sigterm(planes: Planes, agent: Agents) -> None:
    plane = planes()
    running = agent(plane)
    gate = running.folder / "gate"
    plane.assign(command=shell(f"{waits_for(gate)}; exit 6"))
    eventually(lambda: plane.doing() == "running")
    running.term()
    eventually(lambda: plane.doing() == "draining")
    assert (plane.polls[-1]["claim"], plane.polls[-1]["fence"]) == ("c-1", 7)
    assert running.popen.poll() is None
    gate.touch()
    assert running.exit_code() == 0
    assert plane.received("result")[0]["exit_code"] == 6


def test_grace_that_runs_out_stops_the_command_and_is_reported(planes: Planes, agent: Agents) -> None:
    plane = planes(grace=0.2)
    running = agent(plane)
    plane.assign(command=["sleep", "600"])
    eventually(lambda: plane.doing() == "running")
    running.term()
    assert running.exit_code() == 0
    assert plane.received("result")[0]["exit_code"] == 128 + 15
    assert "grace" in plane.received("result")[0]["reason"]


def test_the_end_of_a_claim_stops_the_whole_group(planes: Planes, agent: Agents) -> None:
    plane = planes()
    running = agent(plane)
    plane.assign(command=shell("sh -c 'sleep 600 & echo $! > grandchild; wait' & echo $$ > child; wait"))
    pids = [running.work / "work" / name for name in ("child", "grandchild")]
    eventually(lambda: all(path.exists() and path.read_text().strip() for path in pids))
    plane.end(7, reason="cancelled by its tenant")
    assert running.exit_code() == 0
    assert plane.received("result")[0]["exit_code"] == 128 + 15
    assert not any(alive(int(path.read_text())) for path in pids)


def test_what_the_command_leaves_behind_is_killed(planes: Planes, agent: Agents) -> None:
    plane = planes()
    plane.assign(command=shell("sleep 600 & echo $!"))
    running = agent(plane)
    assert running.exit_code() == 0
    assert plane.received("result")[0]["exit_code"] == 0
    assert not alive(int(running.output()))


def test_a_claims_variables_reach_the_command_and_none_of_ours_do(planes: Planes, agent: Agents) -> None:
    plane = planes()
    plane.assign(
        command=shell('env; cat "$HOLDFAST_PAYLOAD"; stat -c "mode %a" "$HOLDFAST_PAYLOAD"'),
        env={"COLOUR": "green", "BOTH": "env", "HOLDFAST_TENANT": "another"},
        secrets={"PASSWORD": "hunter2", "BOTH": "secret"},
        payload={"rows": [1, 2]},
    )
    running = agent(plane)
    assert running.exit_code() == 0
    seen = running.output().decode()
    for line in (
        "COLOUR=green",
        "PASSWORD=hunter2",
        "BOTH=secret",
        "HOLDFAST_TENANT=acme",
        "HOLDFAST_CLAIM=c-1",
    ):
        assert line in seen.splitlines()
    assert "HOLDFAST_FENCE=7" in seen
    assert '{"rows":[1,2]}' in seen.replace(" ", "")
    assert "mode 600" in seen
    assert "private" not in seen
    assert "HOLDFAST_TOKEN_FILE" not in seen
    assert not (running.work / "payload.json").exists()
    assert stat.S_IMODE(os.stat(running.outputs / "c-1").st_mode) == 0o600
    for secret in ("hunter2", "bootstrap-1", *plane.tokens):
        assert secret not in running.log


def test_a_command_that_cannot_start_reports_why(planes: Planes, agent: Agents) -> None:
    for command, code in ((["no-such-program"], 127), (["/"], 126), ([], 126), (["a\0b"], 126)):
        plane = planes()
        plane.assign(command=command)
        assert agent(plane).exit_code() == 0
        reported = plane.received("result")[0]
        assert reported["exit_code"] == code
        assert reported["reason"]


def test_the_pools_command_goes_before_the_claims(planes: Planes, agent: Agents) -> None:
    plane = planes(worker={"run": shell("echo pool")})
    plane.assign(command=shell("echo claim"))
    running = agent(plane)
    assert running.exit_code() == 0
    assert running.output() == b"pool\n"


def test_a_token_that_was_replaced_is_read_again(planes: Planes, agent: Agents) -> None:
    plane = planes()
    running = agent(plane)
    eventually(lambda: plane.doing() == "idle")
    plane.bootstrap = "bootstrap-2"
    plane.tokens.clear()
    running.token_file.write_text("bootstrap-2")
    plane.assign(command=["true"])  # the open poll returns the assignment; the acknowledgement gets 401
    assert running.exit_code() == 0
    assert len(plane.received("register")) == 2
    assert plane.received("result")[0]["exit_code"] == 0


def test_a_token_is_renewed_before_it_expires(planes: Planes, agent: Agents) -> None:
    plane = planes(expires_in=0.5, poll_seconds=0.1)
    agent(plane)
    eventually(lambda: len(plane.received("register")) >= 3)


def test_a_condemned_agent_exits(planes: Planes, agent: Agents) -> None:
    plane = planes()
    running = agent(plane)
    eventually(lambda: plane.doing() == "idle")
    plane.exit = True
    assert running.exit_code() == 0


def test_a_failing_activation_refuses_the_claim(planes: Planes, agent: Agents) -> None:
    plane = planes(worker={"activate": shell("exit 9")})
    plane.assign(command=shell("touch started"))
    running = agent(plane)
    assert running.exit_code() == 1
    assert plane.received("refuse") == [{"fence": 7, "reason": "activate exited with 9"}]
    assert not plane.received("ack")


def test_a_refusal_carries_the_hooks_last_lines_without_the_claims_secrets(planes: Planes, agent: Agents) -> None:
    script = 'seq 10000; printf "key %s pin %s\\n" "$KEY" "$PIN"; printf "to \\033[31mvolume\\033[0m $KEY failed\\n" >&2; exit 9'
    plane = planes(worker={"activate": shell(script)})
    plane.assign(secrets={"KEY": "a-long-secret", "PIN": "123"})
    running = agent(plane)
    assert running.exit_code() == 1
    [refusal] = plane.received("refuse")
    lines = refusal["output"].splitlines()
    assert lines[-1] == "to volume *** failed"
    assert lines[-2] == "10000", "a line with a very short secret is left out"
    assert 1000 < len(refusal["output"]) <= 2048
    assert "a-long-secret" not in running.log


def test_wrong_settings_are_named(planes: Planes, agent: Agents) -> None:
    plane = planes()
    cases = {
        "HOLDFAST_WORKER": "",
        "HOLDFAST_TOKEN_FILE": "/nowhere/token",
        "HOLDFAST_SERVERS_FILE": "/nowhere/servers",
        "HOLDFAST_LONELY_SECONDS": "soon",
        "HOLDFAST_BIND": "0.0.0.0",
    }
    for name, value in cases.items():
        running = agent(plane, **{name: value})
        assert running.exit_code() == 2
        assert name in running.log
