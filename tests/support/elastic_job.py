"""A local job whose number of shards changes while it trains, as the operator changes it."""

import json
import os
import time
from typing import Any, Final, Self

from pstraining.api import contract
from pstraining.runtime.config.cluster import Task
from pstraining.runtime.local import LocalJob, LocalProcess, hold_port

SEEN_SECONDS: Final = 15.0
"""Seconds until launchers see another cluster map."""
FOLLOWED: Final = '"event": "layout_followed"'


class ElasticJob(LocalJob):
    """The servers of a shard stay as long as the shard; a server keeps its number among all servers of the job."""

    def __init__(self, command: list[str], **settings: Any) -> None:
        super().__init__(command, **settings)
        self.members = 1 + int(settings["standbys"])
        """Number of servers of each shard."""
        self._began: dict[str, tuple[int, int]] = {}
        """The number of former lines of each task's process, and the layout that it has started with."""
        self.layout, self.servers = 1, list(self.cluster["ps"])
        """The number of the layout, and its servers' addresses in their order."""

    def __enter__(self) -> Self:
        super().__enter__()
        return self

    def change(self, shards: int) -> None:
        """Start the missing servers of a layout with this number of shards, and list it as the next one."""
        before, known, self.next = len(self.servers) // self.members, len(self.cluster["ps"]), list[str]()
        for index in range(shards * self.members):
            shard, member = index % shards, index // shards
            if shard < before:
                self.next.append(self.servers[shard + member * before])
            else:
                self.next.append(f"127.0.0.1:{hold_port(self._stack)}")
                self.cluster["ps"].append(self.next[-1])
        for index in range(known, len(self.cluster["ps"])):
            self.start(Task("ps", index))
        self._write(nextLayout=self.layout + 1, nextServers=self.next)

    def start(self, task: Task) -> LocalProcess:
        """Start a task's process, as its next attempt if it had one."""
        former = self.processes.get(task.label)
        self._began[task.label] = len(former.lines) if former else 0, self.layout
        return super().start(task)

    def settle(self) -> None:
        """List the next layout as the layout in use, and end the servers that it lacks.

        Launchers see it seconds later, and restart the programs of workers that have not followed until then.
        """
        deadline = time.monotonic() + SEEN_SECONDS
        while (late := self._not_following(self.layout + 1)) and time.monotonic() < deadline:
            self.supervise()
            time.sleep(0.05)
        gone, self.servers, self.layout = set(self.servers) - set(self.next), self.next, self.layout + 1
        self._write()
        for process in late:
            process.popen.terminate()
        for address in gone:
            label = Task("ps", self.cluster["ps"].index(address)).label
            self.processes.pop(label).popen.kill()

    def _not_following(self, layout: int) -> list[LocalProcess]:
        """Return the workers that neither have started with a layout nor followed it since."""
        return [
            process
            for process in self.processes.values()
            if process.task.type == "worker"
            and (began := self._began[process.task.label])[1] != layout
            and not any(f'"layout": {layout},' in line for line in process.lines[began[0] :] if FOLLOWED in line)
        ]

    def _write(self, **more: Any) -> None:
        file = self._folder / contract.CLUSTER_FILE
        cluster = {**self.cluster, "ps": self.servers}
        written = file.with_name("next")
        written.write_text(json.dumps({**self._file, "cluster": cluster, "layout": self.layout, **more}))
        os.replace(written, file)

    def _environment_of(self, task: Task, term: int) -> dict[str, str]:
        everything, known = self.cluster, {**self.cluster, "ps": self.servers}
        try:
            self.cluster = everything if task.type == "ps" else known
            return super()._environment_of(task, term)
        finally:
            self.cluster = everything
