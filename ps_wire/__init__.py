"""Formats and rules that servers and workers must agree on, and nothing else.

Frames, carriers, the partition plan, table descriptions, consistency specs and the error tree.
It knows neither optimizers nor gates, and imports neither `ps_server` nor `ps_worker`.
"""

import os

# Else whoever fails in TLS writes a line of gRPC's own into a server's log, as often as it likes.
os.environ.setdefault("GRPC_VERBOSITY", "ERROR")
