from pstraining.client.client import Client as Client

__version__: str
