"""The rows of kubectl_rows about the kubeconfig's files."""

from tests.support.kubeconfigs import config, tls, without
from tests.support.kubectl_rows import TLS, Row

AUTHORITY = (TLS / "server.pem").read_text()
FIRST, SECOND = config("first"), config("second", "@other@")
YAML = """apiVersion: v1
kind: Config
current-context: first
clusters: [{name: first, cluster: {server: '@plain@'}}]
contexts: [{name: first, context: {cluster: first, user: first, namespace: ns-first}}, {name: other, context: {}}]
users: [{name: first, user: {token: t}}]
"""
BOTH = {"first": FIRST, "second": SECOND}
TWO = "@dir@/first:@dir@/second"
ACTING = {"as": "nobody@example.com", "as-groups": ["system:authenticated", "a team"]}
EXTRA = {"as": "jane", "as-uid": "7", "as-user-extra": {"example.com/Scopes x": ["one", "two"], "dept": ["ml"]}}
SAME_NAMES = {"a/config": config(), "b/config": config(server="@other@", user={"as": "b"})}
WITH_NAME = tls(cluster={"tls-server-name": "api.example"})

FILES = [
    Row("two files", BOTH, TWO),
    Row("two files the other way round", BOTH, "@dir@/second:@dir@/first"),
    Row("two files and a context of the second", BOTH, TWO, ("--context", "second")),
    Row("the first file has no current-context", {**BOTH, "first": without(FIRST, "current-context")}, TWO),
    Row("the first file has an empty current-context", {**BOTH, "first": {**FIRST, "current-context": ""}}, TWO),
    Row("the same names in both", SAME_NAMES, "@dir@/a/config:@dir@/b/config"),
    Row("a user of the second file", {"first": without(FIRST, "users"), "second": config(user={"as": "b"})}, TWO),
    Row("an empty file in the list", {**BOTH, "first": ""}, TWO),
    Row("a file of comments in the list", {**BOTH, "first": "# nothing\n"}, TWO),
    Row("a missing file in the list", {"second": SECOND}, TWO),
    Row("empty entries in the list", BOTH, ":@dir@/first::@dir@/second:"),
    Row("the same file twice", {"first": FIRST}, "@dir@/first:@dir@/first"),
    Row("a relative path", {"first": FIRST}, "first"),
    Row(
        "the home folder is not written ~",
        {"home/.kube/config": FIRST, "second": SECOND},
        "~/.kube/config:@dir@/second",
    ),
    Row("an empty KUBECONFIG", {"home/.kube/config": FIRST}, ""),
    Row("no KUBECONFIG", {"home/.kube/config": FIRST}, None),
    Row("--kubeconfig", {**BOTH}, "@dir@/first", ("--kubeconfig", "@dir@/second")),
    Row(
        "--kubeconfig is one path", BOTH, None, ("--kubeconfig", TWO), refused="--kubeconfig .*: there is no such file"
    ),
    Row("--kubeconfig is missing", BOTH, TWO, ("--kubeconfig", "@dir@/third"), refused="there is no such file"),
    Row("a folder in the list", {"first/x": "", "second": SECOND}, TWO, refused="cannot be read: Is a directory"),
    Row("words", {"config": "just words"}, refused="is not a kubeconfig"),
    Row(
        "a list of kubeconfigs",
        {"config": {"kind": "List", "apiVersion": "v1", "items": [FIRST]}},
        refused="kind is List",
    ),
    Row("directives of YAML", {"config": f"%YAML 1.1\n---\n{YAML}...\n"}),
    Row("lines of Windows", {"config": YAML.replace("\n", "\r\n")}),
    Row("broken YAML", {"config": "{"}, refused="config, line"),
    Row("broken YAML in the second file", {"first": FIRST, "second": "{"}, TWO, refused="second, line"),
    Row("a token that is a number", {"config": config(user={"token": 5})}, refused=r"users\[0\].user.token"),
    Row(
        "a name twice",
        {"config": {**FIRST, "users": FIRST["users"] * 2}},
        refused="users has two entries with the name",
    ),
    Row("a key twice", {"config": YAML + "current-context: other\n"}, refused="duplicate key current-context"),
    Row("two documents", {"config": f"{YAML}---\ncurrent-context: other\n"}),
    Row("a document before it", {"config": f"---\n{YAML}"}),
    Row("booleans of YAML 1.1", {"config": YAML.replace("'@plain@'", "'@tls@', insecure-skip-tls-verify: yes")}),
    Row("a namespace that looks like a time", {"config": YAML.replace("ns-first", "12:30:00")}),
    Row("a namespace that looks like a date", {"config": YAML.replace("ns-first", "2026-01-01")}),
    Row(
        "a namespace that is a number",
        {"config": YAML.replace("ns-first", "1")},
        refused=r"contexts\[0\].context.namespace",
    ),
    Row("an anchor", {"config": YAML.replace("'@plain@'", "&s '@plain@'") + "other: *s\n"}),
    Row("a byte order mark", {"config": f"\ufeff{YAML}"}),
    Row("another kind", {"config": YAML.replace("Config", "ConfigMap")}, refused="is not a kubeconfig"),
    Row(
        "another apiVersion",
        {"config": YAML.replace("apiVersion: v1", "apiVersion: v2")},
        refused="is not a kubeconfig",
    ),
    Row("no kind and apiVersion", {"config": YAML.replace("apiVersion: v1\nkind: Config\n", "")}),
    Row(
        "null is absent",
        {"config": {**config(user={"token": None, "as": "a"}, cluster={"proxy-url": None}), "preferences": None}},
    ),
    Row(
        "unknown fields",
        {"config": {**FIRST, "colour": "blue", "users": [{"name": "first", "user": {"as": "a", "b": 1}}]}},
    ),
]
