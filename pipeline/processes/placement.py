"""Where the processes of a cell run: the training ranks first, node by node and one GPU each, the servers on the GPUs after them.

The one source of this for both engines. It knows nodes by their index; pipeline/processes/hosts.py knows which machines they are.
On a CPU a node's GPUs are places for processes, without a device; with gpus_per_node 0 every process is on the one node.
"""

from __future__ import annotations

from dataclasses import dataclass

from pipeline.config import CellSettings
from pipeline.sections import ClusterSettings, MegatronSettings, ServerSettings


@dataclass(frozen=True)
class Place:
    """A node by its index and the GPUs of it that a process sees; none on a CPU."""

    node: int = 0
    gpus: tuple[int, ...] = ()


@dataclass(frozen=True)
class Placement:
    """The place of every training rank and of every server, by their numbers; without such an engine there are none."""

    ranks: tuple[Place, ...]
    servers: tuple[Place, ...]

    @property
    def servers_read_scratch(self) -> bool:
        """Whether every server runs where the trainer writes published versions."""
        return all(place.node == 0 for place in self.servers)


def place(settings: CellSettings) -> Placement:
    """The placement of a cell. ValueError where its processes do not fit, or cannot reach the published weights."""
    cluster, megatron, servers = settings.cluster, settings.megatron, settings.servers
    if cluster is None:
        return Placement((), ())
    taken = megatron.num_ranks if megatron else 0
    if megatron:
        _check_ranks(megatron, cluster)
    starts = _server_starts(servers, cluster, taken) if servers else []
    width = servers.tensor_parallel if servers else 0
    placement = Placement(
        tuple(_places(rank, 1, cluster) for rank in range(taken)),
        tuple(_places(start, width, cluster) for start in starts),
    )
    _check_reach(placement, settings, cluster)
    return placement


def _places(start: int, count: int, cluster: ClusterSettings) -> Place:
    """The place of a process that takes `count` GPUs from number `start` of all."""
    node, local = divmod(start, cluster.gpus_per_node) if cluster.gpus_per_node else (0, start)
    return Place(node, tuple(range(local, local + count)) if cluster.device == "cuda" else ())


def _server_starts(servers: ServerSettings, cluster: ClusterSettings, first: int) -> list[int]:
    """The first GPU of every server, counted over all nodes. One that would span two nodes starts on the second."""
    per_node, starts = cluster.gpus_per_node, []
    for number in range(servers.num_servers):
        if per_node and first % per_node + servers.tensor_parallel > per_node:
            first += per_node - first % per_node
        if per_node and (servers.tensor_parallel > per_node or first + servers.tensor_parallel > cluster.num_nodes * per_node):
            raise ValueError(
                f"server {number} would take GPUs {first} to {first + servers.tensor_parallel - 1} of "
                f"{cluster.num_nodes} x {per_node}; a server must fit one node beside the training ranks: "
                "lower servers.num_servers or servers.tensor_parallel, or raise cluster.num_nodes"
            )
        starts.append(first)
        first += servers.tensor_parallel
    return starts


def _check_ranks(megatron: MegatronSettings, cluster: ClusterSettings) -> None:
    per_node = cluster.gpus_per_node
    if per_node and megatron.num_ranks > cluster.num_nodes * per_node:
        raise ValueError(
            f"megatron.num_ranks {megatron.num_ranks} exceeds cluster.num_nodes x gpus_per_node {cluster.num_nodes} x {per_node}; "
            "raise cluster.num_nodes"
        )
    if megatron.num_ranks > per_node > 0 and per_node % megatron.tensor_parallel:
        raise ValueError(
            f"megatron.tensor_parallel {megatron.tensor_parallel} does not divide cluster.gpus_per_node {per_node}: ranks that "
            "share a layer would be on two nodes; choose a divisor"
        )


def _check_reach(placement: Placement, settings: CellSettings, cluster: ClusterSettings) -> None:
    """Refuse what cannot reach the folder of published weights, which is on the first node unless scratch is shared."""
    if cluster.num_nodes > 1 and not cluster.gpus_per_node:
        raise ValueError(f"cluster.num_nodes is {cluster.num_nodes}; set cluster.gpus_per_node to the processes of a node")
    if cluster.scratch_shared and cluster.scratch is None:
        raise ValueError("cluster.scratch_shared is true, but cluster.scratch names no folder; name one that every node can reach")
    used = {place.node for place in placement.ranks + placement.servers}
    if len(used) < cluster.num_nodes:
        raise ValueError(f"cluster.num_nodes is {cluster.num_nodes}, but the processes fit {len(used)}; lower it")
    remote_ranks = any(place.node for place in placement.ranks)
    if remote_ranks and not cluster.scratch_shared:
        raise ValueError(
            "training ranks on several nodes write a published version together: set cluster.scratch to a folder that every node "
            "can reach and cluster.scratch_shared to true"
        )
    publication = settings.servers.publication if settings.servers else "distributed"
    unreachable = {"tensor": True, "disk": not cluster.scratch_shared, "distributed": False}[publication]
    if unreachable and not placement.servers_read_scratch:
        raise ValueError(
            f"servers.publication {publication} cannot reach servers on other nodes than the trainer's; set it to distributed, or "
            "to disk with cluster.scratch in a folder that every node can reach and cluster.scratch_shared true"
        )
