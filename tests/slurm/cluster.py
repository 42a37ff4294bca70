"""A private SLURM on this machine for tests: virtual nodes with fake GPUs, on the loopback interface, without systemd or cgroups.

    python -m tests.slurm.cluster up FOLDER      # prints the line that makes a shell use it
    python -m tests.slurm.cluster down FOLDER

`up` installs Debian's slurm-wlm and munge where they are missing, so it needs root. `down` ends the daemons whose pids FOLDER
records and removes the folder. /etc/slurm/slurm.conf is a link to the folder's file meanwhile, because Snakemake's job steps run
without SLURM_CONF; a machine that has such a file of its own is left alone.

Partitions: gpu (the default), and spot, whose jobs are requeued when gpu wants their nodes; both span all nodes.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
import signal
import socket
import stat
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

PACKAGES = ("slurm-wlm", "munge")
SYSTEM_CONF = Path("/etc/slurm/slurm.conf")
_HOSTS = Path("/etc/hosts")
_HOSTS_LINE = f"127.0.0.1 {socket.gethostname()} # test SLURM\n"
_PATIENCE_S = 60.0

_CONF = """\
ClusterName=test
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={port}
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket={root}/run/munge.socket,cred_expire={requeue_s}
CommunicationParameters=NoCtldInAddrAny,NoInAddrAny
StateSaveLocation={root}/state
SlurmdSpoolDir={root}/spool/%n
SlurmctldPidFile={root}/run/slurmctld.pid
SlurmdPidFile={root}/run/slurmd-%n.pid
SlurmctldLogFile={root}/log/slurmctld.log
SlurmdLogFile={root}/log/slurmd-%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SwitchType=switch/none
MpiDefault=none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core_Memory
GresTypes=gpu
SlurmdParameters=config_overrides
ReturnToService=2
InactiveLimit=0
KillWait={kill_wait_s}
OverTimeLimit=0
SchedulerParameters=sched_interval=2,bf_interval=2
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
JobRequeue=1
AccountingStorageType=accounting_storage/none
JobAcctGatherType=jobacct_gather/none
{nodes}
PartitionName=gpu Nodes=ALL Default=YES MaxTime=7-0 DefaultTime=60 PriorityTier=10 PreemptMode=OFF State=UP
PartitionName=spot Nodes=ALL MaxTime=7-0 DefaultTime=60 PriorityTier=1 PreemptMode=REQUEUE GraceTime={grace_s} State=UP
"""
_NODE = "NodeName={name} NodeHostname={host} NodeAddr=127.0.0.1 Port={port} CPUs=16 RealMemory=64000 Gres=gpu:{gpus} State=UNKNOWN"


@dataclass(frozen=True)
class Cluster:
    """root: the folder of its files. Nodes are called gpu1 to gpuN; port: the first of 2 + num_nodes ports."""

    root: Path
    num_nodes: int = 2
    gpus: int = 8
    port: int = 16817
    grace_s: int = 30  # between the TERM and the KILL of a preempted job
    kill_wait_s: int = 10  # the same for a job that is cancelled or out of time
    requeue_s: int = 15  # before a requeued job starts again, SLURM waits until its old credentials have expired

    @property
    def nodes(self) -> list[str]:
        return [f"gpu{number}" for number in range(1, self.num_nodes + 1)]

    @property
    def conf(self) -> Path:
        return self.root / "etc" / "slurm.conf"

    @property
    def environment(self) -> dict[str, str]:
        return {**os.environ, "SLURM_CONF": str(self.conf)}

    def up(self) -> None:
        if os.geteuid() != 0:
            raise PermissionError("a private SLURM needs root: it starts jobs as users")
        if SYSTEM_CONF.exists() and not SYSTEM_CONF.is_symlink():
            raise FileExistsError(f"{SYSTEM_CONF} exists: this machine has a SLURM of its own")
        _install()
        self._write_files()
        self._start_daemons()

    def down(self) -> None:
        """Cancel the jobs, end the daemons that `up` started, and remove every trace."""
        with contextlib.suppress(OSError, subprocess.SubprocessError):
            self.run("scancel", "--user=root", timeout=10)
            _wait_until(lambda: not self.run("squeue", "-h", timeout=10).strip(), "the jobs have ended")
        for name in (*(f"slurmd-{node}" for node in self.nodes), "slurmctld", "munged"):
            self._end(name)
        if SYSTEM_CONF.is_symlink() and SYSTEM_CONF.readlink() == self.conf:
            SYSTEM_CONF.unlink()
        hosts = _HOSTS.read_text()
        if _HOSTS_LINE in hosts:
            _HOSTS.write_text(hosts.replace(_HOSTS_LINE, ""))
        shutil.rmtree(self.root, ignore_errors=True)

    def run(self, *command: str, timeout: float = 60) -> str:
        """The output of one of SLURM's commands."""
        done = subprocess.run(command, env=self.environment, capture_output=True, text=True, timeout=timeout, check=False)
        if done.returncode:
            raise subprocess.SubprocessError(f"{' '.join(command)} ended with {done.returncode}: {done.stderr.strip()}")
        return done.stdout

    def _write_files(self) -> None:
        for name in ("etc", "run", "log", "state", "spool", "dev"):
            (self.root / name).mkdir(parents=True, exist_ok=True)
        self.root.chmod(0o755)
        host = socket.gethostname()
        if not socket.gethostbyname(host).startswith("127."):  # the daemons listen on the address of the host's name alone
            _HOSTS.write_text(_HOSTS_LINE + _HOSTS.read_text())
        nodes = (
            _NODE.format(name=name, host=host, port=self.port + 1 + number, gpus=self.gpus)
            for number, name in enumerate(self.nodes, 1)
        )
        values = {"host": host, "root": self.root, "port": self.port, "nodes": "\n".join(nodes)}
        self.conf.write_text(_CONF.format(**values, grace_s=self.grace_s, kill_wait_s=self.kill_wait_s, requeue_s=self.requeue_s))
        for number in range(self.gpus):  # a GPU is counted only where its device file exists; these are twins of /dev/null
            device = self.root / "dev" / f"gpu{number}"
            if not device.exists():
                os.mknod(device, 0o666 | stat.S_IFCHR, os.makedev(1, 3))
        files = f"{self.root}/dev/gpu[0-{self.gpus - 1}]"
        (self.root / "etc" / "gres.conf").write_text(f"NodeName=gpu[1-{self.num_nodes}] Name=gpu File={files}\n")
        (self.root / "etc" / "cgroup.conf").write_text("CgroupAutomount=no\n")
        key = self.root / "etc" / "munge.key"
        key.touch(mode=0o400)
        key.write_bytes(secrets.token_bytes(1024))
        SYSTEM_CONF.parent.mkdir(exist_ok=True)
        SYSTEM_CONF.unlink(missing_ok=True)
        SYSTEM_CONF.symlink_to(self.conf)

    def _start_daemons(self) -> None:
        run = self.root / "run"
        munge = {"key-file": self.root / "etc/munge.key", "socket": run / "munge.socket", "pid-file": run / "munged.pid"}
        munge |= {"log-file": self.root / "log/munged.log", "seed-file": run / "munged.seed"}
        subprocess.run(
            ["munged", "--force", *(f"--{name}={path}" for name, path in munge.items())], check=True, stderr=subprocess.DEVNULL
        )
        subprocess.run(["slurmctld", "-f", str(self.conf)], check=True, env=self.environment)
        for node in self.nodes:
            subprocess.run(["slurmd", "-N", node, "-f", str(self.conf)], check=True, env=self.environment)
        _wait_until(lambda: self._idle() == self.num_nodes, "all nodes are idle")

    def _idle(self) -> int:
        with contextlib.suppress(subprocess.SubprocessError):
            return len(set(self.run("sinfo", "-hN", "-t", "idle", "-o", "%N").split()))
        return 0

    def _end(self, name: str) -> None:
        """End the daemon that a pid file names, unless the pid is another program's by now."""
        file = self.root / "run" / f"{name}.pid"
        with contextlib.suppress(FileNotFoundError, ValueError, ProcessLookupError):
            pid = int(file.read_text())
            if not Path(f"/proc/{pid}/exe").readlink().name.startswith(name.split("-")[0]):
                return
            os.kill(pid, signal.SIGTERM)
            _wait_until(lambda: not Path(f"/proc/{pid}").exists(), f"{name} has ended")


def _install() -> None:
    missing = [name for name in PACKAGES if subprocess.run(["dpkg", "-s", name], capture_output=True, check=False).returncode]
    if not missing:
        return
    environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive", "RUNLEVEL": "1"}  # runlevel 1: no package starts its daemon
    for command in (["apt-get", "update", "-qq"], ["apt-get", "install", "-y", "-qq", "--no-install-recommends", *missing]):
        subprocess.run(command, env=environment, check=True, stdout=subprocess.DEVNULL)


def _wait_until(condition: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + _PATIENCE_S
    while not condition():
        if time.monotonic() > deadline:
            raise TimeoutError(f"waited {_PATIENCE_S:g} s in vain until {what}")
        time.sleep(0.1)


def main() -> None:
    command, folder = sys.argv[1:]
    cluster = Cluster(Path(folder).resolve())
    if command == "up":
        cluster.up()
        print(f"export SLURM_CONF={cluster.conf}")
    else:
        cluster.down()


if __name__ == "__main__":
    main()
