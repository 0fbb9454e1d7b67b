"""The parameter store on the servers: records, variables, shards and the data ledger.

Imports no update mode, no replication, no chief and no worker.
"""
