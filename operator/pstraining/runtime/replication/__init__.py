"""Hot standbys: views of the members, their changes and the transfer of state; imports no chief and no worker."""
