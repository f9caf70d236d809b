"""A page of a built site, as far as tests look at it."""

import html.parser


class Page(html.parser.HTMLParser):
    """What one page of the site links to, what it loads, and which fragments others may link to."""

    LOADS = {"script": "src", "img": "src", "iframe": "src", "link": "href"}
    NOT_LOADED = {"canonical", "alternate", "next", "prev"}
    CODE = {"code", "script", "style"}

    def __init__(self, path):
        super().__init__()
        self.links, self.loads, self.ids = [], [], set()
        self.code_depth, self.text = 0, []
        self.feed(path.read_text())

    def handle_starttag(self, tag, attributes):
        values = dict(attributes)
        self.ids.update(value for name in ("id", "name") if (value := values.get(name)))
        if tag == "a" and values.get("href"):
            self.links.append(values["href"])
        loaded = values.get(self.LOADS.get(tag, ""))
        if loaded and values.get("rel", "") not in self.NOT_LOADED:
            self.loads.append(loaded)
        self.code_depth += tag in self.CODE

    def handle_endtag(self, tag):
        self.code_depth -= tag in self.CODE

    def handle_data(self, data):
        if self.code_depth == 0:
            self.text.append(data)
