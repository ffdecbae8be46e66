"""Writes a generated table into a page, between <!-- NAME --> and <!-- end -->."""


def write_table(page, name, rows):
    head, rest = page.read_text().split(f"<!-- {name} -->\n")
    page.write_text(f"{head}<!-- {name} -->\n" + "\n".join(rows) + "\n<!-- end -->" + rest.split("<!-- end -->", 1)[1])
    print(f"{name}: done", flush=True)
