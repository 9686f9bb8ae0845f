"""Tables in Markdown, a row as soon as it is known."""


def head(*names):
    print("\n| " + " | ".join(names) + " |\n|" + " --- |" * len(names), flush=True)


def row(*cells):
    print("| " + " | ".join(str(cell) for cell in cells) + " |", flush=True)
