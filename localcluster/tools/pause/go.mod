module pstraining.local/hack/cluster/tools/pause

go 1.24.0
