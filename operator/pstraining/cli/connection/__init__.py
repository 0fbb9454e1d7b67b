"""Where commands find the cluster, the namespace and who asks: as kubectl does."""
