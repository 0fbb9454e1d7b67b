"""The rows of kubectl_rows about servers, users, credentials and options."""

from tests.support.kubeconfigs import ANYBODY, config, exec_row, id_token, plugin, printing, tls, without
from tests.support.kubectl_rows import Row
from tests.support.kubectl_table_files import ACTING, AUTHORITY, EXTRA, FILES, FIRST, SECOND, TWO, WITH_NAME

CHOICE = [
    Row(
        "--cluster",
        {"config": {**FIRST, "clusters": FIRST["clusters"] + SECOND["clusters"]}},
        options=("--cluster", "second"),
    ),
    Row(
        "--user",
        {"config": {**FIRST, "users": [*FIRST["users"], {"name": "b", "user": {"as": "b"}}]}},
        options=("--user", "b"),
    ),
    Row("--server", {"config": FIRST}, options=("--server", "@other@")),
    Row("-s without a scheme", {"config": FIRST}, options=("-s", "127.0.0.1:@other-port@")),
    Row("-n", {"config": FIRST}, options=("-n", "mine")),
    Row("--namespace", {"config": FIRST}, options=("--namespace=mine",)),
    Row("no namespace", {"config": {**FIRST, "contexts": [{"name": "first", "context": {"cluster": "first"}}]}}),
    Row(
        "no such --context",
        {"config": FIRST},
        options=("--context", "x"),
        refused="no context x, which --context names",
    ),
    Row("no such --cluster", {"config": FIRST}, options=("--cluster", "x"), refused="no cluster x"),
    Row("no such --user", {"config": FIRST}, options=("--user", "x"), refused="no user x"),
    Row(
        "no such current-context",
        {"config": {**FIRST, "current-context": "x"}},
        refused="no context x, which current-context",
    ),
    Row("a context without its user", {"config": without(FIRST, "users")}),
    Row(
        "a context without its cluster",
        {"config": without(FIRST, "clusters")},
        refused="context first names no cluster",
    ),
    Row(
        "a cluster without a server",
        {"config": {**FIRST, "clusters": [{"name": "first", "cluster": {"tls-server-name": "x"}}]}},
        refused="did not respond",
    ),
    Row("no current-context", {"config": without(FIRST, "current-context")}, refused="has no current-context"),
    Row("no kubeconfig", {}, None, refused="there is no kubeconfig at .*/home/.kube/config. kubectl's default address"),
    Row("no file of KUBECONFIG", {}, TWO, refused="there is no kubeconfig at .*first, .*second"),
    Row("--server alone", {}, None, ("--server", "@plain@", "-n", "mine")),
    Row("a server with a login", {"config": config(server="http://jane:p%40ss@127.0.0.1:@plain-port@")}),
    Row("a server with a space", {"config": config(server="@plain@ ")}, refused="neither a URL nor HOST:PORT"),
    Row("a server with a wrong port", {"config": config(server="http://a:b")}, refused="neither a URL nor HOST:PORT"),
    Row("KUBERNETES_MASTER", {}, None, environ={"KUBERNETES_MASTER": "@other@"}),
    Row("a server with a path", {"config": config(server="@plain@/k8s/clusters/c-1/")}),
    Row("a server without a scheme", {"config": config(server="127.0.0.1:@plain-port@")}),
    Row(
        "a server without a scheme, with a path",
        {"config": config(server="127.0.0.1:@plain-port@/a")},
        refused="neither a URL nor HOST:PORT",
    ),
]
IDENTITY = [
    Row("as and as-groups", {"config": config(user=ACTING)}),
    Row("as-uid and as-user-extra", {"config": config(user=EXTRA)}),
    Row("--as wins", {"config": config(user=ACTING)}, options=("--as", "me")),
    Row("--as-group replaces", {"config": config(user=ACTING)}, options=("--as-group", "a", "--as-group=b,c")),
    Row("--as-uid", {"config": config(user=ACTING)}, options=("--as-uid", "5")),
    Row("a user beyond ASCII", {"config": tls({"as": "m\u00fcller", "as-groups": ["\u0142"], "token": "\u00fc"})}),
    Row(
        "a user of two lines",
        {"config": config(user={"as": "a\nb"})},
        refused="Impersonate-User has control characters",
    ),
    Row("a token of two lines", {"config": tls({"token": "a\nb"})}, refused="Authorization has control characters"),
    Row(
        "groups without a user", {"config": config(user={"as-groups": ["a"]})}, refused="name that user with as or --as"
    ),
    Row(
        "--as-group without a user",
        {"config": FIRST},
        options=("--as-group", "a"),
        refused="name that user with as or --as",
    ),
    Row("a token, without TLS", {"config": config(user={"token": "secret", "as": "jane"})}),
    Row("a token", {"config": tls({"token": "secret"})}),
    Row("--token", {"config": tls({"token": "secret"})}, options=("--token", "mine")),
    Row("a token file", {"config": tls({"tokenFile": "t"}), "t": "filed\n"}),
    Row("a token and a file", {"config": tls({"token": "secret", "tokenFile": "t"}), "t": "filed\n"}),
    Row("a token and a missing file", {"config": tls({"token": "secret", "tokenFile": "t"})}),
    Row("a missing token file", {"config": tls({"tokenFile": "t"})}, refused="token file .*t cannot be read"),
    Row("an empty token file", {"config": tls({"tokenFile": "t"}), "t": "\n"}, refused="token file .*t is empty"),
    Row(
        "nobody",
        {"config": tls({})},
        differs="kubectl asks for a name and a password, which no API server takes any more",
    ),
    Row("a password", {"config": tls({"username": "jane", "password": "p\u00e4ss"})}),
    Row(
        "a password and a token",
        {"config": tls({"username": "j", "password": "p", "token": "t"})},
        refused="only one is allowed",
    ),
    Row(
        "a client certificate",
        {"config": tls({"client-certificate-data": "@client.pem@", "client-key-data": "@client.key@"})},
    ),
    Row(
        "files of a client certificate",
        {"config": tls({"client-certificate": "@pems@/client.pem", "client-key": "@pems@/client.key"})},
    ),
    Row(
        "--client-certificate",
        {"config": tls({})},
        options=("--client-certificate", "@pems@/client.pem", "--client-key", "@pems@/client.key"),
    ),
    Row(
        "a certificate without a key",
        {"config": tls({"client-certificate-data": "@client.pem@"})},
        refused="needs one of client-key",
    ),
    Row(
        "a missing client certificate",
        {"config": tls({"client-certificate": "x", "client-key": "y"})},
        refused="client-certificate .*x cannot be read",
    ),
    Row("an ID token", {"config": tls(id_token(exp=4102444800))}),
    Row(
        "an ID token that has expired",
        {"config": tls(id_token(exp=1))},
        refused="ID token of user first was not renewed",
    ),
    Row(
        "an ID token that is none",
        {"config": tls(id_token(token="a.b"))},
        refused="id-token of user first is not a JSON Web",
    ),
    Row(
        "an auth-provider that is gone",
        {"config": tls({"auth-provider": {"name": "gcp"}})},
        refused="kubectl no longer supports",
    ),
]
WITH_WORDS = f"# A certificate authority (\u00e4\u00f6\u00fc)\n{AUTHORITY}"
DAMAGED = f"-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n{AUTHORITY}"
SECURITY = [
    Row(
        "a certificate authority beside its file",
        {"a/config": config(server="@tls@", user=ANYBODY, cluster={"certificate-authority": "ca"}), "a/ca": AUTHORITY},
        "@dir@/a/config",
    ),
    Row(
        "a missing certificate authority",
        {"config": config(server="@tls@", user=ANYBODY, cluster={"certificate-authority": "ca"})},
        refused="certificate-authority .*ca cannot be read",
    ),
    Row(
        "an authority twice",
        {"config": tls(cluster={"certificate-authority": "@pems@/server.pem"})},
        refused="certificate-authority and certificate-authority-data",
    ),
    Row(
        "an authority that is no PEM",
        {"config": tls(cluster={"certificate-authority-data": "eA=="})},
        refused="is not PEM",
    ),
    Row(
        "words beside an authority",
        {"config": config(server="@tls@", user=ANYBODY, cluster={"certificate-authority": "ca"}), "ca": WITH_WORDS},
    ),
    Row(
        "a damaged certificate beside an authority",
        {"config": config(server="@tls@", user=ANYBODY, cluster={"certificate-authority": "ca"}), "ca": DAMAGED},
    ),
    Row(
        "an authority in lines of Windows",
        {"config": tls(cluster={"certificate-authority-data": "@server.pem@\r\n"})},
    ),
    Row(
        "an authority that is no base64",
        {"config": tls(cluster={"certificate-authority-data": "?"})},
        refused="certificate-authority-data: .*base64",
    ),
    Row(
        "another authority",
        {"config": tls(cluster={"certificate-authority-data": "@other.pem@"})},
        refused="certificate of the API server .* was not accepted",
    ),
    Row(
        "an unknown authority",
        {"config": config(server="@tls@", user=ANYBODY)},
        refused="certificate of the API server .* was not accepted",
    ),
    Row(
        "insecure", {"config": config(server="@tls@", user={"token": "t"}, cluster={"insecure-skip-tls-verify": True})}
    ),
    Row(
        "insecure with an authority",
        {"config": tls(cluster={"insecure-skip-tls-verify": True})},
        refused="a certificate authority and insecure-skip-tls-verify",
    ),
    Row(
        "--insecure-skip-tls-verify",
        {"config": tls(cluster={"certificate-authority-data": "@other.pem@"})},
        options=("--insecure-skip-tls-verify",),
    ),
    Row(
        "--certificate-authority",
        {"config": tls(cluster={"certificate-authority-data": "@other.pem@"})},
        options=("--certificate-authority", "@pems@/server.pem"),
    ),
    Row("another server name", {"config": WITH_NAME}),
    Row("a wrong server name", {"config": tls(cluster={"tls-server-name": "x.example"})}, refused="was not accepted"),
    Row(
        "--tls-server-name",
        {"config": tls(cluster={"tls-server-name": "x.example"})},
        options=("--tls-server-name", "api.example"),
    ),
    Row(
        "--server drops the server name",
        {"config": tls(cluster={"tls-server-name": "x.example"})},
        options=("--server", "@tls@"),
    ),
]
WITH_LOGIN = "http://j%C3%B6rg:p%40s%2Fs@127.0.0.1:@plain-port@"
PROXIES = [
    Row("proxy-url", {"config": config(server="http://api.invalid", cluster={"proxy-url": "@plain@"})}),
    Row("a proxy-url with a login", {"config": config(server="http://api.invalid", cluster={"proxy-url": WITH_LOGIN})}),
    Row("HTTP_PROXY with a login", {"config": config(server="http://api.invalid")}, environ={"HTTP_PROXY": WITH_LOGIN}),
    Row(
        "proxy-url wins over NO_PROXY",
        {"config": config(server="http://api.invalid", cluster={"proxy-url": "@plain@"})},
        environ={"NO_PROXY": "*"},
    ),
    Row(
        "a proxy-url of another kind",
        {"config": config(cluster={"proxy-url": "ftp://x"})},
        refused="must begin with http, https or socks5",
    ),
    Row("HTTP_PROXY", {"config": config(server="http://api.invalid")}, environ={"HTTP_PROXY": "@other@"}),
    Row(
        "http_proxy without a scheme",
        {"config": config(server="http://api.invalid")},
        environ={"http_proxy": "127.0.0.1:@other-port@"},
    ),
    Row("loopback is not proxied", {"config": FIRST}, environ={"HTTP_PROXY": "@other@"}),
    Row(
        "NO_PROXY of another domain",
        {"config": config(server="http://api.invalid:80")},
        environ={"HTTP_PROXY": "@other@", "NO_PROXY": "invalid:81, x.invalid"},
    ),
    Row(
        "NO_PROXY",
        {"config": config(server="http://api.invalid:80")},
        environ={"HTTP_PROXY": "@other@", "NO_PROXY": "x, .invalid:80"},
        refused="did not respond",
    ),
]
NO_TIME = "neither a whole number of seconds nor a duration"
TIMES = [
    *(
        Row(f"--request-timeout {text}", {"config": FIRST}, options=("--request-timeout", text))
        for text in ("0", "5", "1m", "1.5s", "2m3s", "1h0.5m", "500ms", "+5s", "0s")
    ),
    *(
        Row(f"--request-timeout {text}", {"config": FIRST}, options=("--request-timeout", text), refused=NO_TIME)
        for text in ("1.5", "5x", "m", "5 s")
    ),
    Row("--request-timeout 1d", {"config": FIRST}, options=("--request-timeout", "1d"), differs="days are a unit, too"),
]
CERTIFICATE = r"""
pem() { sed 's/$/\\n/' "$1" | tr -d '\n'; }
printf '{"kind": "ExecCredential", "apiVersion": "client.authentication.k8s.io/v1", "status": {
  "clientCertificateData": "%s", "clientKeyData": "%s"}}' "$(pem @pems@/client.pem)" "$(pem @pems@/client.key)"
"""
PRINTS = "printf '%s\\n' 'apiVersion: client.authentication.k8s.io/v1' 'kind: ExecCredential' 'status: {token: t}'"
PLUGINS = [
    exec_row("a plugin's token", printing('{"token": "printed"}')),
    exec_row(
        "a plugin in PATH",
        "",
        "login-that-is-not-there .* cannot be run: No such file",
        command="login-that-is-not-there",
    ),
    exec_row("a plugin's certificate", CERTIFICATE),
    exec_row(
        "a plugin's arguments and environment",
        printing('{"token": "\'$1-$WHO\'"}'),
        args=["one"],
        env=[{"name": "WHO", "value": "me"}],
    ),
    exec_row(
        "a plugin of v1beta1",
        printing('{"token": "printed"}', "v1beta1"),
        apiVersion="client.authentication.k8s.io/v1beta1",
        interactiveMode=None,
    ),
    exec_row(
        "what a plugin hears",
        "case $KUBERNETES_EXEC_INFO in *'\"interactive\":false'*|*'\"interactive\": false'*) ;; *) exit 3;; esac\n"
        + printing(
            '{"token": "\'$(echo $KUBERNETES_EXEC_INFO | tr -d " " | grep -o "\\"server\\":\\"https" | tr -cd a-z)\'"}'
        ),
        provideClusterInfo=True,
    ),
    exec_row(
        "a plugin that fails",
        "echo 'token expired: run `corp login`' >&2; exit 7",
        "login of user first failed with exit code 7: token expired: run `corp login`",
    ),
    exec_row("a plugin that fails in silence", "exit 1", r"failed with exit code 1\.$"),
    exec_row("a plugin that prints nothing", "", "printed no ExecCredential"),
    exec_row("a plugin that prints words before", "echo hello; " + printing('{"token": "t"}'), "printed "),
    exec_row(
        "a plugin that prints words behind", printing('{"token": "t"}') + "; echo hello", "printed no ExecCredential"
    ),
    exec_row("a plugin that prints a number", printing('{"token": 5}'), "printed no ExecCredential"),
    exec_row(
        "a plugin that prints another kind", PRINTS.replace("ExecCredential", "Token"), "printed no ExecCredential"
    ),
    exec_row("a plugin that prints YAML", PRINTS),
    exec_row(
        "a plugin that prints a day as the token's end",
        printing('{"token": "t", "expirationTimestamp": "2100-01-01"}'),
        "printed no ExecCredential",
    ),
    exec_row(
        "a plugin that prints the token's end without a time zone",
        printing('{"token": "t", "expirationTimestamp": "2100-01-01T00:00:00"}'),
        "printed no ExecCredential",
    ),
    exec_row("a plugin that prints no credentials", printing("{}"), "neither a token nor a certificate"),
    exec_row("a plugin that prints a certificate alone", printing('{"clientCertificateData": "x"}'), "but not both"),
    exec_row(
        "a plugin that prints another version",
        printing('{"token": "t"}', "v1beta1"),
        "printed apiVersion .*v1beta1, but",
    ),
    exec_row("a plugin of an old version", "", "it must be client", apiVersion="client.authentication.k8s.io/v1alpha1"),
    exec_row("a plugin without interactiveMode", "", "without interactiveMode", interactiveMode=None),
    exec_row("a plugin with an unknown interactiveMode", "", "interactiveMode Sometimes", interactiveMode="Sometimes"),
    exec_row("a plugin that needs a terminal", "", "needs a terminal", interactiveMode="Always"),
    exec_row("a plugin without a command", "", "has exec without command", command=""),
    exec_row("a token is taken before a plugin", "exit 1", options=("--token", "mine")),
    Row(
        "a plugin, without TLS",
        {"config": {**config(user=plugin("exit 1")[0]["users"][0]["user"])}, "login": plugin("exit 1")[1]},
    ),
]
POD_DIFFERS = "kubectl asks http://localhost:8080 with such an option"
PODS = [
    Row("in a pod", {}, None, in_pod=True),
    Row("in a pod with a missing kubeconfig", {}, "@dir@/config", in_pod=True),
    Row("in a pod with a kubeconfig", {"config": FIRST}, in_pod=True),
    Row(
        "in a pod with a kubeconfig without a namespace",
        {"config": {**FIRST, "contexts": [{"name": "first", "context": {"cluster": "first"}}]}},
        in_pod=True,
    ),
    Row("in a pod with -n", {}, None, ("-n", "mine"), in_pod=True),
    Row("in a pod with POD_NAMESPACE", {}, None, environ={"POD_NAMESPACE": "given"}, in_pod=True),
    Row(
        "POD_NAMESPACE outside of a pod",
        {"config": {**FIRST, "contexts": [{"name": "first", "context": {"cluster": "first"}}]}},
        environ={"POD_NAMESPACE": "given"},
    ),
    Row("in a pod with --token", {}, None, ("--token", "mine"), in_pod=True),
    Row("in a pod with --server", {}, None, ("--server", "@plain@"), in_pod=True),
    Row("in a pod with --as", {}, None, ("--as", "jane"), in_pod=True, differs=POD_DIFFERS),
    Row("in a pod with --request-timeout", {}, None, ("--request-timeout", "5s"), in_pod=True, differs=POD_DIFFERS),
]
ROWS = [*FILES, *CHOICE, *IDENTITY, *SECURITY, *PROXIES, *TIMES, *PLUGINS, *PODS]
