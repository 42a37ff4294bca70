"""The machines of a cell: this one, or the nodes of the SLURM job that it is, with addresses at which they reach each other.

SLURM is asked, not its environment: Snakemake's job steps remove most of SLURM's variables. The first host is always this one,
because the cell's controller runs on it.
"""

from __future__ import annotations

import os
import random
import re
import socket
import subprocess
from dataclasses import dataclass

LOOPBACK = "127.0.0.1"
_PORTS = range(20000, 32000)  # below the ports that systems hand out to outgoing connections


@dataclass(frozen=True)
class Host:
    """name: what SLURM calls the node, or None for this machine, on which processes are started without it."""

    name: str | None = None
    address: str = LOOPBACK


THIS_HOST = Host()


def cell_hosts(num_nodes: int) -> tuple[Host, ...]:
    """The hosts of a cell of `num_nodes` nodes. ValueError where this job has another number of them."""
    if num_nodes == 1:
        return (THIS_HOST,)
    job = os.environ.get("SLURM_JOB_ID")
    if job is None:
        raise ValueError(f"cluster.num_nodes is {num_nodes}, but this is no SLURM job; run `snakemake --profile slurm`")
    names = _ask("scontrol", "show", "hostnames", _ask("squeue", "-h", "-j", job, "-o", "%N").strip()).split()
    if len(names) != num_nodes:
        raise ValueError(f"cluster.num_nodes is {num_nodes}, but SLURM job {job} has {len(names)} nodes ({', '.join(names)})")
    own = os.environ.get("SLURMD_NODENAME", names[0])
    others = [name for name in names if name != own]
    return (Host(None, node_address(own)), *(Host(name, node_address(name)) for name in others))


def node_address(name: str) -> str:
    """The IPv4 address of a node, which SLURM knows even where its name cannot be resolved."""
    found = re.search(r"NodeAddr=(\S+)", _ask("scontrol", "show", "node", name))
    return socket.gethostbyname(found[1] if found else name)


def interface_of(address: str) -> str:
    """The network interface of this machine that has `address`: gloo, not told, may choose one that others cannot reach."""
    import psutil  # here, because training ranks import this module and need it not

    for name, addresses in psutil.net_if_addrs().items():
        if any(entry.family == socket.AF_INET and entry.address == address for entry in addresses):
            return name
    raise ValueError(f"no network interface of this machine has {address}, at which the job's other nodes look for it")


def _ask(*command: str) -> str:
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    if done.returncode:
        raise ValueError(f"`{' '.join(command)}` ended with {done.returncode}: {done.stderr.strip()}")
    return done.stdout


def free_port() -> int:
    """A port of this machine that nothing listens on now. Whoever takes it before its user does makes that one fail visibly."""
    for port in random.sample(_PORTS, 200):
        with socket.socket() as probe:
            try:
                probe.bind(("", port))
            except OSError:
                continue
        return port
    raise ValueError(f"no free port among {_PORTS.start} to {_PORTS.stop - 1}; end other servers on this machine")
