"""How gradients become updates, one package for each mode; imports no replication, no chief and no worker."""
