"""A TCP port of this machine that forwards to another one, for clusters that cannot reach each other."""

import socket
import socketserver
import threading
from collections.abc import Iterator
from contextlib import contextmanager

CHUNK = 65536


@contextmanager
def forwarded(address: str, target: tuple[str, int]) -> Iterator[int]:
    """Forward connections from a free port of this address, and return the port."""

    class Handler(socketserver.BaseRequestHandler):
        def handle(self) -> None:
            with socket.create_connection(target) as upstream:
                back = threading.Thread(target=_pump, args=(upstream, self.request), daemon=True)
                back.start()
                _pump(self.request, upstream)
                back.join()

    class Server(socketserver.ThreadingTCPServer):
        daemon_threads = True
        block_on_close = False

    with Server((address, 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        try:
            yield int(server.server_address[1])
        finally:
            server.shutdown()


def _pump(source: socket.socket, sink: socket.socket) -> None:
    """Copy until the source ends, then shut down the sink for writing."""
    try:
        while data := source.recv(CHUNK):
            sink.sendall(data)
        sink.shutdown(socket.SHUT_WR)
    except OSError:
        sink.close()
