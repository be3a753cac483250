"""What may befall the store: that it forgets what it held."""

from __future__ import annotations

import random
from collections.abc import Callable

from simulation.faults import Fault
from simulation.world import World


class StoreFaults:
    """The store is wiped, or restored as it once was; or it dies with the agent that served it."""

    def __init__(self, world: World) -> None:
        self._world = world
        self.all: tuple[Fault, ...] = (self.wipe, self.restore, self.restart_host)

    def wipe(self, chance: random.Random) -> str:
        """Empty, and revisions begin anew."""
        before = self._world.server.state.revision
        self._world.server.wipe()
        return f"the store is empty{self._others_write(before, chance)}"

    def restore(self, chance: random.Random) -> str:
        """A snapshot taken now comes back in some time."""
        server = self._world.server
        snapshot = server.snapshot()
        seconds = chance.choice((0.5, 2.0, 10.0, 30.0))

        def come_back() -> None:
            if not self._world.is_healed:
                before = server.state.revision
                server.restore(snapshot)
                told = self._others_write(before, chance)
                self._world.tell("--", f"the store is as it was {seconds} s ago{told}")

        self._world.loop.call_later(seconds, come_back)
        return f"a snapshot is taken, which comes back in {seconds} s"

    def _others_write(self, before: int, chance: random.Random) -> str:
        """Soon, or at once, its revision may have passed what agents saw before."""
        if chance.random() < 0.4:
            return ""
        seconds = chance.choice((0.0, 0.0, 1.0))
        write = self._world.server.write_as_others
        if seconds:
            self._world.loop.call_later(seconds, write, before + 50)
        else:
            write(before + 50)
        return f"; {seconds} s later others have written up to revision {before + 50}"

    def restart_host(self, chance: random.Random) -> str:
        """An agent that serves the store ends, and another one soon takes its place."""
        world = self._world
        present = world.present()
        if not present:
            return ""
        host = chance.choice(present)
        world.crash(host)
        world.server.stop()
        seconds = chance.choice((0.2, 0.5, 0.8)) * world.settings.ttl
        world.loop.call_later(seconds, self._come_again, chance.random() < 0.5)
        return f"{host.name} ends, and the store with it; another comes in {seconds} s"

    def _come_again(self, is_first: bool) -> None:
        """It serves a new store, and registers sooner or later than the others do."""
        world = self._world
        if world.is_healed:  # the store is back as it was, and may hold what was asked of the job
            return
        world.server.wipe()
        world.server.start()
        steps: list[Callable[[], object]] = [world.add]
        if is_first:
            steps[0]()
        else:
            world.loop.call_later(0.5, steps[0])
