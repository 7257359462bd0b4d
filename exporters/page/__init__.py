"""The page for a person: one HTML document made on the server, that needs neither script nor network.

Its modules are imported when it is first asked for: nobody else pays for them.
"""

#: Its own style, script and renewal, and nothing from elsewhere.
POLICY = (
    "default-src 'none'; style-src 'self'; script-src 'self'; connect-src 'self'; img-src data:; base-uri 'none'; "
    "form-action 'none'; frame-ancestors 'none'"
)
#: ``/?refresh``: a browser without scripts asks again after so many seconds; with scripts it does so by itself.
REFRESH_SECONDS = 15
