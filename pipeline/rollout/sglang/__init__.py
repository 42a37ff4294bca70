"""The `sglang` rollout engine: SGLang servers as child processes, driven over HTTP.

server.py        command line, environment and placement of each server, from the settings; start and health
client.py        HTTP to one server: bodies out, bytes in, typed errors
decode.py        one answer's bytes -> a Response; the expert ids shrink to uint8 on the way
fleet.py         several servers: balance, bounded concurrency, restart of the one that died or hangs
publication.py   a published version into the servers (disk, tensor or distributed route), verified by their checksums
sender.py        the process that broadcasts a version on the distributed route
engine.py        SGLangEngine, the RolloutEngine: loads and generations in the order in which they were asked for
cpu/             runs an unmodified SGLang where there is no GPU
"""
