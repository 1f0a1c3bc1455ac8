"""Deliberate bugs: small changes of the product. The simulation must catch each of them within ten seeds."""

from typing import NamedTuple


class Change(NamedTuple):
    path: str  # relative to src/holdfast
    before: str  # must occur exactly once in the file
    after: str


class Mutant(NamedTuple):
    name: str
    faults: str  # the faults that the bug needs, and their moments, as in a seed: store.failover@claim.assigned
    changes: tuple[Change, ...]


FN = "postgres/functions"

MUTANTS = (
    Mutant(
        "condemn without its guard",
        "operator.retire@claim.active",
        (
            Change(
                f"{FN}/ends.sql",
                "WHERE id = p_worker AND state IN @worker.condemn\n        AND (p_version IS NULL OR version = p_version) FOR UPDATE;",
                "WHERE id = p_worker AND state <> 'gone' FOR UPDATE;",
            ),
            Change(
                f"{FN}/ends.sql",
                "IF EXISTS (SELECT FROM holdfast.claim WHERE worker_id = p_worker AND state IN @claim.live) THEN\n        RETURN 'stale';\n    END IF;\n    -- An agent",
                "-- An agent",
            ),
            Change(
                f"{FN}/ends.sql",
                "UPDATE holdfast.worker SET state = 'retiring', version = version + 1, reason = p_reason, parked_since = NULL,",
                "UPDATE holdfast.worker SET state = 'retiring', claim_id = NULL, version = version + 1, reason = p_reason, parked_since = NULL,",
            ),
        ),
    ),
    Mutant(
        "deletion by name instead of UID",
        "pod.impostor@worker.retiring",
        (
            Change(
                "running/apply.py",
                "        await self._cluster.delete(a.name, a.uid, a.grace)\n",
                "        found = await self._cluster.read(a.name)\n        if found is not None:\n            await self._cluster.delete(a.name, found.uid, a.grace)\n",
            ),
            Change(
                "duties/cases.py",
                "    if pod is not None and row.worker.pod_uid is not None and pod.uid != row.worker.pod_uid:\n        pod = None",
                "    if pod is not None and row.worker.pod_uid is not None and pod.uid != row.worker.pod_uid and row.worker.state != 'retiring':\n        pod = None",
            ),
        ),
    ),
    Mutant(
        "a term that does not expire",
        "replica.crash@worker.spawning",
        (
            Change(f"{FN}/fleet.sql", "'expired', until < t OR renewed_at > t,", "'expired', renewed_at > t,"),
            Change(
                f"{FN}/fleet.sql",
                "WHERE duty = p_duty AND (until < t OR renewed_at > t\n",
                "WHERE duty = p_duty AND (number = 0 OR renewed_at > t\n",
            ),
            Change(
                "running/terms.py",
                "            elif term.idle > stale_after(periods[term.duty]) or term.idle < 0:",
                "            elif term.idle < 0:",
            ),
        ),
    ),
    Mutant(
        "the longest duration starts again with each renewal",
        "none",
        (
            Change(
                "postgres/claims.py",
                "SET lease_heard = (SELECT holdfast.heard()) + lease\n    WHERE",
                "SET lease_heard = (SELECT holdfast.heard()) + lease, max_heard = (SELECT holdfast.heard()) + max_duration\n    WHERE",
            ),
        ),
    ),
    Mutant(
        "a parked worker's TTL starts again with each poll",
        "none",
        (
            Change(
                f"{FN}/worker.sql",
                "    IF p_claim IS NOT NULL THEN\n        SELECT * INTO c",
                "    UPDATE holdfast.worker SET parked_heard = holdfast.heard() WHERE id = p_worker AND state = 'parked';\n    IF p_claim IS NOT NULL THEN\n        SELECT * INTO c",
            ),
        ),
    ),
    Mutant(
        "a pass that trusts an empty list",
        "cluster.lists-empty@claim.active",
        (
            Change("duties/converge.py", "if not pods and known > 1:", "if not pods and known > 1_000_000:"),
            Change(
                "running/apply.py",
                "        pod = await self._cluster.read(proof.name)\n",
                "        pod = next((p for p in await self._cluster.pods() if p.name == proof.name), None)\n",
            ),
        ),
    ),
    Mutant(
        "an unmatched UPDATE taken as success",
        "operator.force-release@claim.active",
        (
            Change(
                "postgres/workers.py",
                "    return Stale() if result is None else effect_of(result)",
                "    return Done() if result is None else effect_of(result)",
            ),
            Change(
                "postgres/claims.py",
                "        row = await self._db.row(RENEW, claim, fence, tenant)\n",
                "        row = await self._db.row(RENEW, claim, fence, tenant) or await self._db.row(GET, claim)\n",
            ),
        ),
    ),
    Mutant(
        # the patch is guarded by the pod's UID only, not by the version that the replica has read
        "protection cleared by a late patch",
        "cluster.late-writes=1@worker.parked",
        (
            Change(
                "claimpath/protection.py",
                "    return Done() if await cluster.clear(worker, uid, pod_version) else Stale()\n",
                '    return Done() if await cluster.clear(worker, uid, "") else Stale()\n',
            ),
        ),
    ),
    Mutant(
        "a slot not freed on a refused spawn",
        "cluster.quota@worker.spawning",
        (
            Change(
                "running/apply.py",
                "            await self._store.workers.unspawn([worker for worker, _ in refused], last.kind, last.reason, SPAWN_BACKOFF)\n",
                "",
            ),
        ),
    ),
    Mutant(
        "a slot freed on an unknown outcome",
        "cluster.answers-lost@worker.spawning",
        (
            Change(
                "running/apply.py",
                "                unknown.append(answer)  # looked up by its name, before anything else\n",
                "                refused.append((order.worker, Refused('other', str(answer))))\n",
            ),
        ),
    ),
    Mutant(
        "a scale-down from a stale view",
        "cluster.starts-slow@claim.assigned",
        (
            Change(
                "duties/scale.py",
                "        return await ports.store.pools.loads()",
                "        fresh = await ports.store.pools.loads()\n        old, self.old = getattr(self, 'old', fresh), fresh\n        return old",
            ),
            Change(
                "duties/scale.py",
                '        Condemn(worker, version, f"the pool wants',
                '        Condemn(worker, None, f"the pool wants',
            ),
            Change("duties/scale.py", "    floor = wanted if over <= 0 else None", "    floor = None"),
            Change(
                "duties/scale.py",
                "    if surplus > 0 and not load.pool.activations_fail and (load.shrunk_ago is None or load.shrunk_ago >= COOLDOWN):\n        step = max(step, math.ceil(surplus / 4))",
                "    if surplus > 0:\n        step = max(step, surplus)",
            ),
        ),
    ),
    Mutant(
        "a fence not checked at release",
        "none",
        (
            Change(
                f"{FN}/ends.sql",
                "AND state IN @claim.end AND (p_fence IS NULL OR fence = p_fence)\n",
                "AND state IN @claim.end\n",
            ),
        ),
    ),
    Mutant(
        "deadlines that run through an outage",
        "store.outage@claim.active",
        (
            Change(
                "postgres/migrations/0001_core.sql",
                "    SELECT last_heard - deaf + CASE WHEN since > interval '5 s' THEN interval '0'\n",
                "    SELECT last_heard - deaf + CASE WHEN since > interval '5 s' THEN since\n",
            ),
            Change(
                f"{FN}/fleet.sql",
                "    v_step := least(t - h.last_heard, make_interval(secs => coalesce(p_elapsed, 0)));\n    v_step := CASE WHEN v_step > interval '5 s' THEN interval '0' ELSE greatest(interval '0', least(v_step, interval '2 s')) END;",
                "    v_step := t - h.last_heard;",
            ),
        ),
    ),
    Mutant(
        "a parked worker given to another tenant",
        "cluster.quota=0@worker.parked",
        (
            Change(
                f"{FN}/match.sql",
                "WHERE c.pool_id = p_pool AND c.tenant = p.tenant AND c.state = 'waiting'\n",
                "WHERE c.pool_id = p_pool AND c.state = 'waiting'\n",
            ),
            Change(
                f"{FN}/match.sql",
                "WHERE c.pool_id = p_pool AND c.tenant = w.tenant AND c.state = 'waiting'\n",
                "WHERE c.pool_id = p_pool AND c.state = 'waiting'\n",
            ),
        ),
    ),
    Mutant(
        "no backoff after a failed activation",
        "none",
        (
            Change(
                f"{FN}/match.sql",
                "AND deadline_heard > h AND coalesce(not_before_heard <= h, true)\n",
                "AND deadline_heard > h\n",
            ),
            Change(f"{FN}/match.sql", "\n          AND coalesce(w.not_before_heard <= h, true)\n", "\n"),
        ),
    ),
    Mutant(
        "a pool that does not wait although its hook fails",
        "hooks.fail@claim.assigned",
        (Change(f"{FN}/match.sql", "    v_left := @fn.activations_allowed(v_pool, p_limit);\n", "    v_left := p_limit;\n"),),
    ),
    Mutant(
        "an adopted pod reaped after a restore",
        "store.failover@claim.assigned",
        (
            Change(
                "recovery/compare.py",
                "    if held is not None:\n        claim,",
                "    if held is not None and row is not None and row.worker.claim is not None:\n        claim,",
            ),
            Change(
                "duties/cases.py",
                "    if pod.stamp is not None or not pod.agent_running or (heartbeat is not None and heartbeat.claim is not None):\n        return",
                "    if False:\n        return",
            ),
            Change(
                "duties/cases.py",
                "    if from_before and began:\n        return Verdict(Case.ORPHAN_FROM_BEFORE",
                "    if False:\n        return Verdict(Case.ORPHAN_FROM_BEFORE",
            ),
        ),
    ),
    Mutant(
        "a duty counted as successful although its read failed",
        "cluster.down@worker.warm",
        (
            Change(
                "running/passes.py",
                "            tally.skips += 1\n",
                "            tally.skips += 1\n            tally.succeeded = True\n",
            ),
        ),
    ),
    Mutant(
        "a holder told that its worker is protected when it is not",
        "cluster.down@claim.assigned",
        (
            Change(
                "claimpath/protection.py",
                "Usable(pod is not None and pod.protected)",
                "Usable(True)",
            ),
        ),
    ),
    Mutant(
        "a tenant's cap not looked at",
        "network.lossy=1@claim.created",
        (
            Change(
                f"{FN}/match.sql",
                "SELECT CASE WHEN t.max_claims IS NULL THEN 1000000000",
                "SELECT CASE WHEN true THEN 1000000000",
            ),
        ),
    ),
    Mutant(
        "lost commits that are not compared",
        "store.failover@claim.assigned",
        (
            Change(
                "recovery/marks.py",
                "        self.seen = self.seen.raised_to(beat.seen)\n",
                "        self.seen = Seen()\n",
            ),
            Change(
                "recovery/marks.py",
                "            self.seen = self.seen.raised_to(kept)\n",
                "            pass\n",
            ),
        ),
    ),
    Mutant(
        "the agent of a pod whose row was lost cannot speak",
        "store.failover@claim.assigned",
        (
            Change(
                "api/agents.py",
                "    pool = known[1] if known is not None else await _forgotten(context, body.worker)\n",
                "    pool = known[1] if known is not None else None\n",
            ),
        ),
    ),
)
