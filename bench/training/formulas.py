"""What each way of exchanging gradients must move over its busiest link, for one update, in sizes of the model.

One direction of a full-duplex link, with n workers and k machines for parameter servers alone. BytePS (Jiang et al.,
OSDI'20), the table in sections 2 to 4 and theorem 1.
"""


def parameter_servers(workers: int, servers: int) -> float:
    """Each server takes a share of every worker's gradient; each worker sends all of its own."""
    return max(1.0, workers / servers)


def all_reduce(workers: int) -> float:
    """A ring."""
    return 2 * (workers - 1) / workers


def optimum(workers: int, servers: int) -> float:
    """With the load split over both kinds of machines."""
    n, k = workers, servers
    return 2 * n * (n - 1) / (n * n + k * n - 2 * k)
