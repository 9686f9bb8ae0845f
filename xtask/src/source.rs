//! Rust source as its lexer sees it: code, comments and literals, and the items that are for tests.

use std::ops::Range;

/// A part of a source that is no code.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A comment of a line or of a block, with its marks.
    Comment,
    /// A string or a character, with its quotes.
    Literal,
}

/// The comments and literals of a source, in order.
pub fn parts(text: &str) -> Vec<(Kind, Range<usize>)> {
    let bytes = text.as_bytes();
    let (mut parts, mut at) = (Vec::new(), 0);
    while at < bytes.len() {
        if !matches!(bytes[at], b'/' | b'"' | b'\'') {
            at += 1;
            continue;
        }
        let rest = &bytes[at..];
        let (kind, length) = match rest {
            [b'/', b'/', ..] => (Kind::Comment, text[at..].find('\n').unwrap_or(rest.len())),
            [b'/', b'*', ..] => (Kind::Comment, block_comment(rest)),
            [b'"', ..] => (Kind::Literal, string(&bytes[..at], rest)),
            [b'\'', b'\\', ..] => (Kind::Literal, escaped(rest)),
            // A lifetime has no second quote behind its first letter.
            [b'\'', ..] => match text[at + 1..].chars().next().map_or(0, char::len_utf8) {
                letter if rest.get(1 + letter) == Some(&b'\'') => (Kind::Literal, letter + 2),
                _ => {
                    at += 1;
                    continue;
                }
            },
            _ => {
                at += 1;
                continue;
            }
        };
        let end = (at + length).min(bytes.len());
        parts.push((kind, at..end));
        at = end;
    }
    parts
}

fn is_of_word(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || byte == b'_' || byte >= 0x80
}

/// The length of a string from its quote on. What is before tells whether it is a raw one.
fn string(before: &[u8], rest: &[u8]) -> usize {
    let hashes = before.iter().rev().take_while(|byte| **byte == b'#').count();
    let prefix = &before[..before.len() - hashes];
    // No other word that ends so may stand before a quote.
    let is_raw = prefix.ends_with(b"r");
    if !is_raw {
        return escaped(rest);
    }
    let end = [b"\"".as_slice(), &before[prefix.len()..]].concat();
    let found = rest[1..].windows(end.len()).position(|window| window == end);
    found.map_or(rest.len(), |at| 1 + at + end.len())
}

/// The length of a literal with escapes.
fn escaped(rest: &[u8]) -> usize {
    let mut at = 1;
    while at < rest.len() && rest[at] != rest[0] {
        at += if rest[at] == b'\\' { 2 } else { 1 };
    }
    at + 1
}

/// The length of a block comment, in which others may be.
fn block_comment(rest: &[u8]) -> usize {
    let (mut at, mut depth) = (2, 1);
    while at < rest.len() && depth > 0 {
        let step = match &rest[at..] {
            [b'/', b'*', ..] => 1,
            [b'*', b'/', ..] => -1,
            _ => 0,
        };
        depth += step;
        at += if step == 0 { 1 } else { 2 };
    }
    at
}

/// The text with spaces instead of ranges, which begin and end with ASCII. The lines stay.
fn without<'a>(text: &str, ranges: impl Iterator<Item = &'a Range<usize>>) -> String {
    let mut bytes = text.as_bytes().to_vec();
    for range in ranges {
        for line in bytes[range.clone()].split_mut(|byte| *byte == b'\n') {
            line.fill(b' ');
        }
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

fn count(text: &str) -> usize {
    text.lines().filter(|line| !line.trim_start().is_empty()).count()
}

/// A word, `::`, or another byte of code.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Token<'a> {
    /// As it is written.
    pub text: &'a str,
    /// The byte it begins with.
    pub at: usize,
}

/// The tokens of code without comments and literals.
pub fn tokens(code: &str) -> Vec<Token<'_>> {
    tokens_from(code, 0)
}

fn tokens_from(code: &str, begin: usize) -> Vec<Token<'_>> {
    let (bytes, mut tokens, mut at) = (code.as_bytes(), Vec::new(), begin);
    while at < bytes.len() {
        let begin = at;
        while at < bytes.len() && is_of_word(bytes[at]) {
            at += 1;
        }
        if at == begin {
            at += if bytes[at..].starts_with(b"::") { 2 } else { 1 };
        }
        if !bytes[begin].is_ascii_whitespace() {
            tokens.push(Token { text: &code[begin..at], at: begin });
        }
    }
    tokens
}

/// A source, read for what it declares.
#[derive(Debug)]
pub struct Source {
    /// As it is in the file.
    pub text: String,
    /// Code alone, without the items for tests: spaces for the rest.
    pub code: String,
    comments: Vec<Range<usize>>,
    tests: Vec<Range<usize>>,
}

impl Source {
    /// Reads a source.
    pub fn new(text: String) -> Self {
        let parts = parts(&text);
        let code = without(&text, parts.iter().map(|(_, range)| range));
        let tests = test_items(&code);
        let code = if tests.is_empty() { code } else { without(&code, tests.iter()) };
        let is_comment = |(kind, range)| (kind == Kind::Comment).then_some(range);
        let comments = parts.into_iter().filter_map(is_comment).collect();
        Self { text, code, comments, tests }
    }

    /// The code lines outside of the items for tests, and in them: lines that are neither blank
    /// nor only comment.
    pub fn lines(&self) -> (usize, usize) {
        let sources = count(&without(&self.text, self.comments.iter().chain(&self.tests)));
        let in_tests = |range: &Range<usize>| {
            let of_item = |comment: &&Range<usize>| range.contains(&comment.start);
            let comments: Vec<Range<usize>> =
                self.comments.iter().filter(of_item).cloned().collect();
            count(&without(&self.text, comments.iter())[range.clone()])
        };
        (sources, self.tests.iter().map(in_tests).sum())
    }

    /// The line of a byte, from 1.
    pub fn line(&self, at: usize) -> usize {
        self.code[..at].matches('\n').count() + 1
    }

    /// The modules declared outside of the items for tests.
    pub fn modules(&self) -> Vec<Module> {
        // Few files declare some.
        if !self.code.contains("mod ") {
            return Vec::new();
        }
        let tokens = tokens(&self.code);
        let (mut modules, mut around) = (Vec::new(), Vec::new());
        for (number, token) in tokens.iter().enumerate() {
            let before = number.checked_sub(1).map(|number| tokens[number].text);
            match (before, token.text, tokens.get(number + 1), tokens.get(number + 2)) {
                // The brace of an inline module ends as every other does.
                (_, "mod", Some(name), Some(end)) if end.text == ";" => modules.push(Module {
                    name: name.text.to_owned(),
                    around: around.iter().flatten().cloned().collect(),
                    path: self.path_before(&tokens[..number]),
                }),
                (Some(name), "{", ..) => {
                    let is_module = number >= 2 && tokens[number - 2].text == "mod";
                    around.push(is_module.then(|| name.to_owned()));
                }
                (_, "}", ..) => drop(around.pop()),
                _ => {}
            }
        }
        modules
    }

    /// The value of the attribute `path` before a declaration.
    fn path_before(&self, tokens: &[Token<'_>]) -> Option<String> {
        let begin = tokens.iter().rposition(|token| matches!(token.text, ";" | "}" | "{"));
        let attributes = &tokens[begin.map_or(0, |begin| begin + 1)..];
        let path = attributes.windows(2).find(|two| two[0].text == "path" && two[1].text == "=")?;
        self.text[path[1].at..].split('"').nth(1).map(str::to_owned)
    }
}

/// A declaration `mod name;`.
#[derive(Debug, PartialEq, Eq)]
pub struct Module {
    /// The last part of its path.
    pub name: String,
    /// The modules of the same file around it.
    pub around: Vec<String>,
    /// The file that an attribute names, seen from the folder of this file.
    pub path: Option<String>,
}

/// The items and statements behind `#[cfg(test)]` and `#[cfg(all(test, …))]`, with the attribute.
fn test_items(code: &str) -> Vec<Range<usize>> {
    let mut found = Vec::new();
    let mut at = 0;
    while let Some(begin) = ["#[cfg(test)]", "#[cfg(all(test,"]
        .iter()
        .filter_map(|attribute| code[at..].find(attribute))
        .min()
    {
        let begin = at + begin;
        let tokens = tokens_from(code, begin);
        let end = tokens[item_end(&tokens)];
        at = end.at + end.text.len();
        found.push(begin..at);
    }
    found
}

/// The last token of the item or statement, which begins with its attributes.
fn item_end(tokens: &[Token<'_>]) -> usize {
    let mut at = 0;
    while tokens[at].text == "#" {
        at = closing(tokens, at + 1) + 1;
    }
    // In these, a brace is a part of a value or of a list.
    let is_value = |token: &&Token<'_>| matches!(token.text, "use" | "static" | "let");
    let is_value = tokens[at..].iter().take(2).any(|token| is_value(&token));
    while at < tokens.len() {
        match tokens[at].text {
            ";" => return at,
            "{" | "(" | "[" => {
                let end = closing(tokens, at);
                if tokens[at].text == "{" && !is_value {
                    return end;
                }
                at = end + 1;
            }
            _ => at += 1,
        }
    }
    tokens.len() - 1
}

/// The bracket that closes the one that is here.
fn closing(tokens: &[Token<'_>], open: usize) -> usize {
    let mut depth = 0;
    for (at, token) in tokens.iter().enumerate().skip(open) {
        match token.text {
            "{" | "(" | "[" => depth += 1,
            "}" | ")" | "]" => depth -= 1,
            _ => {}
        }
        if depth == 0 {
            return at;
        }
    }
    tokens.len() - 1
}
