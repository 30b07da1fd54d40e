"""Serves the routes of tests/matching/served.rs with Flask, and prints its port."""

from flask import Flask
from werkzeug.serving import WSGIRequestHandler, make_server

ROUTES = {
    "admin": "/admin/secret",
    "login": "/login",
    "users": "/users/<user>/files",
    "static": "/static/<path:rest>",
    "orders": "/api/v1/orders",
    "health": "/health",
    "reports": "/reports/2024",
    "account": "/account/settings/",
    "search": "/search",
    "upload": "/upload/avatar",
}

app = Flask(__name__, static_folder=None)
for name, rule in ROUTES.items():
    app.add_url_rule(rule, name, lambda name=name, **_: name, methods=["GET", "POST"])


class Handler(WSGIRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_request(self, *_):
        """Logs nothing."""

    log_error = log_request


server = make_server("127.0.0.1", 0, app, threaded=True, request_handler=Handler)
print(server.server_port, flush=True)
server.serve_forever()
