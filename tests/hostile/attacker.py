"""One attack as a process: `python -m hostile.attacker NAME SCENE` carries it out and prints what came of it as JSON.

It gives way to the other processes of the machine: on a network the attacker's machine is another one.
"""

import asyncio
import json
import os
import resource
import sys
from collections import Counter
from contextlib import suppress

import uvloop

from hostile.attacks import ATTACKS
from hostile.attacks.scene import Scene

NICE = 10


async def carry_out(name: str, scene: Scene, seconds: float) -> Counter[str]:
    """Attack for so long."""
    with suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            await ATTACKS[name].work(scene)
    return scene.seen


async def _main(name: str, seconds: float, scene: Scene) -> None:
    attacking = asyncio.create_task(carry_out(name, scene, seconds))
    # What was counted is told even if an attack does not let itself be ended.
    await asyncio.wait([attacking], timeout=seconds + 1)
    if attacking.done():
        attacking.result()
    sys.stdout.write(json.dumps(scene.seen))
    sys.stdout.flush()
    os._exit(0)


if __name__ == "__main__":
    os.nice(NICE)
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    uvloop.run(_main(sys.argv[1], float(sys.argv[2]), Scene(**json.loads(sys.argv[3]))))
