"""The parameter store on the servers: records, variables, shards and the data ledger; imports no update mode, no
replication and no chief or worker."""
