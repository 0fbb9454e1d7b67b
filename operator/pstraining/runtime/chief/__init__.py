"""The chief: it fences and restores the servers, saves, reports and evaluates; imports no worker."""
