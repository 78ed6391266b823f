"""Starts as many ranks of a script as its argument has, without torch; its exit code is the largest of theirs."""

import os
import socket
import subprocess
import sys

ranks = int(sys.argv[1])
with socket.socket() as probe:
    probe.bind(("127.0.0.1", 0))
    port = probe.getsockname()[1]
environment = dict(os.environ, MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port), WORLD_SIZE=str(ranks))
processes = [
    subprocess.Popen([sys.executable, *sys.argv[2:]], env=dict(environment, RANK=str(rank), LOCAL_RANK=str(rank)))
    for rank in range(ranks)
]
sys.exit(max(abs(process.wait()) for process in processes))
