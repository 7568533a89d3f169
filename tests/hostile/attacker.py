"""One attack as a process: `python -m hostile.attacker NAME SECONDS CONTEXT` prints what came of it as JSON.

It gives way to the other processes of the machine: on a network the attacker's machine is another one.
"""

import asyncio
import json
import os
import resource
import sys
import threading

import uvloop

from hostile.attacks import ATTACKS
from hostile.attacks.context import HANGING, MAX_EXTENSIONS, AttackContext

NICE = 5
GRACE_SECONDS = 0.5


def _end(context: AttackContext) -> None:
    """Tell what was counted, and drop all connections as a machine does that is switched off."""
    sys.stdout.write(json.dumps(dict(context.counts)))
    sys.stdout.flush()
    os._exit(0)


async def _attack(name: str, seconds: float, context: AttackContext) -> None:
    attack = ATTACKS[name]
    attacking = asyncio.create_task(attack.work(context))
    for _ in range(MAX_EXTENSIONS):
        done, _ = await asyncio.wait([attacking], timeout=seconds)
        counts = {HANGING: float("inf"), **context.counts}
        if done or not (attack.missing_effects(counts) or attack.fault(counts)):
            break
    if attacking.done():
        attacking.result()
    _end(context)


if __name__ == "__main__":
    os.nice(NICE)
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    attacked, limit = AttackContext(**json.loads(sys.argv[3])), float(sys.argv[2])
    # Thousands of connections do not let themselves be closed in order soon enough.
    switch = threading.Timer(MAX_EXTENSIONS * limit + GRACE_SECONDS, _end, [attacked])
    switch.daemon = True
    switch.start()
    uvloop.run(_attack(sys.argv[1], limit, attacked))
