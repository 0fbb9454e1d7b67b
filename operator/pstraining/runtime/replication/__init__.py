"""Hot standbys: views of the members, their changes and the transfer of state; imports no chief and no worker.

`replication.view` has the glossary; docs/reference/glossary.md has the words of the whole project.
"""
