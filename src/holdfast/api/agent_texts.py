"""What each field of the worker protocol means, for the OpenAPI document of agents (docs/worker-protocol.md)."""

INCARNATION = "Grows when the database loses commits. An agent sends back the last one that it received, 0 before the first."
HOLDS = "as it was assigned, or null if the agent holds nothing."

OF_AGENTS: dict[str, dict[str, str]] = {
    "Register": {
        "uid": "The UID of the worker's pod.",
        "version": "The version of the agent.",
        "protocol": "The version of the worker protocol.",
    },
    "Registered": {
        "token": "A short-lived token for all further calls.",
        "expires_in": "After how many seconds the token expires.",
        "install": "The id of the installation.",
        "poll_seconds": "How long a poll should wait.",
        "mode": "Whether the worker runs jobs or serves sessions.",
        "worker": "What the worker runs.",
        "grace": "For how many seconds a busy worker may continue after it was asked to end.",
        "output_limit": "How many bytes of a job's output are kept.",
    },
    "Poll": {
        "doing": "What the agent does.",
        "claim": f"The claim that the agent holds, {HOLDS}",
        "fence": f"The fence of that claim, {HOLDS}",
        "tenant": f"The tenant of that claim, {HOLDS}",
        "reset_fence": "The fence of the last claim that the agent has served, from that claim's end on.",
        "endpoint": "The address at which the agent listens for holders of sessions.",
        "credential": "The credential of that claim. It proves that the agent holds it.",
        "incarnation": INCARNATION,
        "wait": "For how many seconds the poll waits for news.",
    },
    "DirectiveView": {
        "do": "What the agent should do: `nothing` new, `hold` a claim, `end` its claim, or `exit`.",
        "fence": "The fence of the claim that has ended.",
        "park": "Whether the agent resets its worker and stays, because the worker is parked for its tenant.",
        "assignment": "The claim to hold.",
        "incarnation": INCARNATION,
    },
    "AssignmentView": {
        "tenant": "The tenant of the claim.",
        "command": "The claim's command, or an empty list.",
        "payload": "The claim's payload, or null.",
        "env": "The claim's environment variables.",
        "secrets": "The claim's secrets.",
        "credential": "The credential that the holder sends to the worker's port.",
        "protected": "Whether the pod is protected from disruption.",
        "max_seconds": "For how many seconds the claim may hold the worker.",
    },
    "Acknowledge": {
        "endpoint": "The address at which the agent listens for the holder of a session.",
        "incarnation": INCARNATION,
    },
    "ResultReport": {
        "exit_code": "The exit code of the command; for a signal 128 + its number.",
        "reason": "Why it ended, if the exit code does not say it.",
    },
    "Refusal": {
        "reason": "Why the activation failed.",
        "output": "The end of what the hook wrote, without secrets.",
    },
    "Failure": {
        "reason": "Why the agent gives up its worker.",
        "output": "The end of what the served process or the reset wrote, without secrets.",
    },
    "LogReport": {"text": "What the worker's processes and its agent wrote last, at most 64 KB, without secrets."},
    "Accepted": {"claim": "The claim to which the report belongs."},
}
