"""Greets people in the language they prefer."""

GREETINGS = {"de": "Hallo", "en": "Hello", "fr": "Bonjour"}


def greet(name: str, language: str = "en") -> str:
    if language not in GREETINGS:
        raise ValueError(f"no greeting in {language!r}")
    return f"{GREETINGS[language]}, {name}!"


if __name__ == "__main__":
    print(greet("world"))
