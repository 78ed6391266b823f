# SPDX-License-Identifier: MIT OR Apache-2.0
"""A Slurm cluster of four nodes with pretended GPUs on this machine: the real daemons, in its own folder.

The daemons listen on free ports of 127.0.0.1, with a key and a socket of munge that no other program uses. Nothing is
read from /etc/slurm. Any user can start one, and is its administrator then; root is not needed.
"""

from __future__ import annotations

import getpass
import os
import re
import shutil
import signal
import socket
import subprocess
import time
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
HOOKS = ROOT / "deploy" / "slurm"
NODES = 4
#: The GPUs of a node: devices that every machine has.
DEVICES = ("/dev/null", "/dev/zero")
#: Of one GPU. A shard stands for 1 GiB, and an H100 has 79.18.
SHARDS = 79
#: Longer than anything takes on a busy machine, in seconds.
PATIENCE = 60


@dataclass
class Answer:
    """The output of a command at the terminal, and how it ended."""

    code: int
    out: str
    err: str

    @property
    def job(self) -> str:
        """The number of the job that was submitted."""
        found = re.search(r"Submitted batch job (\d+)", self.out)
        assert found, self
        return found[1]


@dataclass
class Programs:
    """One version of Slurm: what is installed, or the folder in which unpack.py put another."""

    root: Path | None = None

    @property
    def path(self) -> str:
        """The folders of its programs. The daemons of munge are always those that are installed."""
        own = f"{self.root}/usr/bin:{self.root}/usr/sbin:" if self.root else ""
        return f"{own}{os.environ.get('PATH', '')}:/usr/sbin:/sbin"

    @property
    def options(self) -> list[str]:
        """The lines that the configuration needs for it."""
        return [f"PluginDir={self.root}/usr/lib/x86_64-linux-gnu/slurm-wlm"] if self.root else []

    def program(self, name: str) -> str:
        return shutil.which(name, path=self.path) or name

    def version(self) -> tuple[int, int]:
        words = subprocess.run([self.program("slurmctld"), "-V"], capture_output=True, text=True, check=True).stdout
        found = re.search(r"(\d+)\.(\d+)", words)
        assert found, words
        return int(found[1]), int(found[2])


def free_ports(count: int) -> list[int]:
    """Ports that no process listens on, all different."""
    with ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for one in sockets:
            one.bind(("127.0.0.1", 0))
        return [one.getsockname()[1] for one in sockets]


@dataclass
class Cluster:
    """`start` it, query it, and surely `stop` it."""

    folder: Path
    programs: Programs
    #: Whether the hooks of deploy/slurm are installed; otherwise it is Slurm as it comes.
    hooks: bool = True
    #: What the controller has in its environment, as an administrator would set it for the service.
    environment: dict[str, str] = field(default_factory=dict)
    _daemons: list[subprocess.Popen[bytes]] = field(default_factory=list)

    @property
    def shards_per_task(self) -> bool:
        """Whether this version can give a job shards of several GPUs of a node, so many for each task."""
        return self.programs.version() >= (23, 11)

    @property
    def conf(self) -> Path:
        return self.folder / "slurm.conf"

    @property
    def other_client(self) -> dict[str, str]:
        """The environment of a client whose configuration has no cli_filter."""
        return {"SLURM_CONF": str(self.folder / "plain" / "slurm.conf")}

    def write(self) -> None:
        user = getpass.getuser()
        controller, *ports = free_ports(1 + NODES)
        several = ",MULTIPLE_SHARING_GRES_PJ" if self.hooks and self.shards_per_task else ""
        lines = [
            "ClusterName=test",
            "SlurmctldHost=localhost(127.0.0.1)",
            f"SlurmctldPort={controller}",
            f"SlurmUser={user}",
            f"SlurmdUser={user}",
            "AuthType=auth/munge",
            f"AuthInfo=socket={self.folder}/munge.socket",
            f"StateSaveLocation={self.folder}/state",
            f"SlurmdSpoolDir={self.folder}/spool-%n",
            f"SlurmctldPidFile={self.folder}/slurmctld.pid",
            f"SlurmdPidFile={self.folder}/slurmd-%n.pid",
            f"SlurmctldLogFile={self.folder}/slurmctld.log",
            f"SlurmdLogFile={self.folder}/slurmd-%n.log",
            "ProctrackType=proctrack/linuxproc",
            "TaskPlugin=task/none",
            "MpiDefault=none",
            "ReturnToService=2",
            "KillWait=1",
            "SchedulerParameters=bf_interval=1,sched_interval=1",
            "SelectType=select/cons_tres",
            f"SelectTypeParameters=CR_Core{several}",
            "SlurmdParameters=config_overrides",
            "GresTypes=gpu,shard",
            "PartitionName=gpu Nodes=ALL Default=YES MaxTime=INFINITE State=UP",
            *self.programs.options,
        ]
        for node, port in enumerate(ports, 1):
            lines.append(
                f"NodeName=gpu{node} NodeHostname=localhost NodeAddr=127.0.0.1 Port={port} CPUs=64 Sockets=2 "
                f"CoresPerSocket=32 ThreadsPerCore=1 RealMemory=1000000 "
                f"Gres=gpu:h100:{len(DEVICES)},shard:{len(DEVICES) * SHARDS}"
            )
            (self.folder / f"spool-gpu{node}").mkdir(parents=True)
        for folder in ["state", "plain"]:
            (self.folder / folder).mkdir()
        plain = "\n".join(lines) + "\n"
        hooks = "CliFilterPlugins=lua\nJobSubmitPlugins=lua\n" if self.hooks else ""
        self.conf.write_text(plain + hooks)
        gpus = "".join(f"Name=gpu Type=h100 File={device} Flags=nvidia_gpu_env\n" for device in DEVICES)
        gres = f"AutoDetect=off\n{gpus}Name=shard Count={len(DEVICES) * SHARDS}\n"
        (self.folder / "gres.conf").write_text(gres)
        (self.folder / "plain" / "slurm.conf").write_text(plain)
        (self.folder / "plain" / "gres.conf").write_text(gres)
        if self.hooks:
            for hook in HOOKS.glob("*.lua"):
                shutil.copy(hook, self.folder)
        key = self.folder / "munge.key"
        key.write_bytes(os.urandom(128))
        key.chmod(0o600)

    def start(self) -> None:
        self.write()
        munge = [self.programs.program("munged"), "--foreground", "--force", "--num-threads=2"]
        for name in ["key-file", "log-file", "pid-file", "seed-file", "socket"]:
            munge.append(f"--{name}={self.folder}/munge.{name.removesuffix('-file')}")
        self._daemon("munged", munge)
        self.wait(lambda: (self.folder / "munge.socket").exists(), "munged has no socket")
        self._daemon("slurmctld", [self.programs.program("slurmctld"), "-D", "-c"], self.environment)
        for node in range(1, NODES + 1):
            steps = ["-d", self.programs.program("slurmstepd")] if self.programs.root else []
            self._daemon(f"slurmd{node}", [self.programs.program("slurmd"), "-D", "-N", f"gpu{node}", *steps])
        all_idle = f"idle {NODES}\n"
        self.wait(lambda: self.run("sinfo", "-h", "-o", "%T %D").out == all_idle, "the nodes are not idle")

    def stop(self) -> None:
        """Ends the jobs, then the daemons."""
        try:
            if len(self._daemons) > 1:
                self.cancel_all()
        finally:
            for daemon in reversed(self._daemons):
                daemon.terminate()
            for daemon in reversed(self._daemons):
                try:
                    daemon.wait(timeout=10)
                except subprocess.TimeoutExpired:
                    os.killpg(daemon.pid, signal.SIGKILL)
                    daemon.wait()
            self._daemons.clear()

    def run(self, *words: str, folder: Path | None = None, stdin: str = "", **environment: str) -> Answer:
        """A command as a user would type it."""
        done = subprocess.run(
            [self.programs.program(words[0]), *words[1:]],
            env=self._environment(environment),
            cwd=folder or self.folder,
            input=stdin,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=PATIENCE,
        )
        return Answer(done.returncode, done.stdout, done.stderr)

    def state(self, job: str) -> str:
        """Its state, and why."""
        return self.run("squeue", "-h", "-j", job, "-o", "%T %r").out.strip()

    def wait_until_running(self, job: str) -> None:
        self.wait(lambda: self.state(job) == "RUNNING None", f"job {job} does not run")

    def shown(self, job: str) -> str:
        return self.run("scontrol", "show", "job", "-d", job).out

    def read_holdings(self, job: str) -> dict[tuple[str, int], int]:
        """The shares that a running job has in Slurm's account: shards, or a whole GPU's, of each GPU of a node."""
        held: dict[tuple[str, int], int] = {}
        for nodes, gres in re.findall(r"Nodes=(\S+) CPU_IDs=\S+ Mem=\S+ GRES=(\S*)", self.shown(job)):
            for node in self.run("scontrol", "show", "hostnames", nodes).out.split():
                for gpu, shards in held_gres(gres).items():
                    held[node, gpu] = shards
        return held

    def cancel_all(self) -> None:
        """Ends every job, and waits until they are gone."""
        self.run("scancel", "--user", getpass.getuser())
        self.wait(lambda: not self.run("squeue", "-h").out, "jobs do not end")
        all_idle = f"idle {NODES}\n"
        self.wait(lambda: self.run("sinfo", "-h", "-o", "%T %D").out == all_idle, "the nodes are not idle")

    def wait(self, done, complaint: str) -> None:
        end = time.monotonic() + PATIENCE
        while not done():
            ended = [daemon.args for daemon in self._daemons if daemon.poll() is not None]
            if ended or time.monotonic() > end:
                logs = sorted(self.folder.glob("*.log")) + sorted(self.folder.glob("*.out"))
                tails = "\n".join(f"{log.name}: {log.read_text(errors='replace')[-2000:]}" for log in logs)
                raise AssertionError(f"{complaint}; ended: {ended}; {self.run('squeue').out}\n{tails}")
            time.sleep(0.1)

    def _environment(self, more: dict[str, str]) -> dict[str, str]:
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("SLURM", "SBATCH", "SALLOC"))}
        return {**kept, "PATH": self.programs.path, "SLURM_CONF": str(self.conf), **more}

    def _daemon(self, name: str, words: list[str], environment: dict[str, str] | None = None) -> None:
        with open(self.folder / f"{name}.out", "wb") as out:
            self._daemons.append(
                subprocess.Popen(
                    words,
                    env=self._environment(environment or {}),
                    stdin=subprocess.DEVNULL,
                    stdout=out,
                    stderr=subprocess.STDOUT,
                    start_new_session=True,
                )
            )


def held_gres(text: str) -> dict[int, int]:
    """GPUs by number with their shards, of `gpu:h100:1(IDX:0)`, `shard:30(IDX:1)` or `shard:84(42/80,42/80)`."""
    held: dict[int, int] = {}
    for name, count, where in re.findall(r"(gpu|shard):(?:h100:)?(\d+)\(([^)]*)\)", text):
        if where.startswith("IDX:"):
            first, _, last = where.removeprefix("IDX:").partition("-")
            for gpu in range(int(first), int(last or first) + 1):
                held[gpu] = SHARDS if name == "gpu" else int(count)
        else:
            for gpu, part in enumerate(where.split(",")):
                shards = int(part.partition("/")[0])
                if shards:
                    held[gpu] = shards
    return held
