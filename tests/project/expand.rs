//! Expands calls of `macro_rules!` macros, as far as sources need it whose items come from macros.
//!
//! A matcher tries the rules in order. A repetition takes as much as it can, and never less.

use std::collections::BTreeMap;

use proc_macro2::{Delimiter, Group, Ident, Span, TokenStream, TokenTree};
use syn::buffer::Cursor;
use syn::ext::IdentExt;
use syn::parse::{ParseStream, Parser};

/// A macro, parsed: the rules with a matcher and a body each.
pub(crate) struct Rules(Vec<(Vec<Part>, Vec<Part>)>);

/// A part of a matcher or of a body.
enum Part {
    Token(TokenTree),
    Group(Delimiter, Vec<Part>),
    /// `$name:kind`; in a body there is no kind.
    Variable(String, String),
    /// `$( … ) separator *`, and how often it may occur.
    Repeat(Vec<Part>, Option<TokenTree>, usize),
}

/// The tokens that a variable of a matcher took.
#[derive(Clone)]
enum Bound {
    Once(TokenStream),
    Each(Vec<Bindings>),
}

type Bindings = BTreeMap<String, Bound>;

impl Rules {
    /// The rules of a macro's definition.
    pub(crate) fn parse(tokens: TokenStream) -> Self {
        let mut groups = tokens.into_iter().filter_map(|token| match token {
            TokenTree::Group(group) => Some(group.stream()),
            _ => None,
        });
        let mut rules = Vec::new();
        while let (Some(matcher), Some(body)) = (groups.next(), groups.next()) {
            rules.push((parts(matcher, true), parts(body, false)));
        }
        Self(rules)
    }

    /// The tokens that a call becomes, or nothing if no rule fits.
    pub(crate) fn expand(&self, call: &TokenStream) -> Option<TokenStream> {
        self.0.iter().find_map(|(matcher, body)| {
            let bindings = matched(matcher, call.clone()).ok()?;
            Some(filled(body, &bindings))
        })
    }
}

/// The parts of a matcher, or of a body.
fn parts(tokens: TokenStream, is_matcher: bool) -> Vec<Part> {
    let mut found = Vec::new();
    let mut tokens = tokens.into_iter();
    while let Some(token) = tokens.next() {
        found.push(match token {
            TokenTree::Group(group) => {
                Part::Group(group.delimiter(), parts(group.stream(), is_matcher))
            }
            token if !is_punct(&token, '$') => Part::Token(token),
            _ => match tokens.next().expect("`$` is followed by something") {
                TokenTree::Group(repeated) => {
                    let sign = tokens.next().expect("a sign follows a repetition");
                    let (sign, separator) = match is_sign(&sign) {
                        true => (sign, None),
                        false => (tokens.next().expect("a sign follows a separator"), Some(sign)),
                    };
                    let most = if is_punct(&sign, '?') { 1 } else { usize::MAX };
                    Part::Repeat(parts(repeated.stream(), is_matcher), separator, most)
                }
                name if is_matcher => {
                    let colon = tokens.next().expect("a kind follows a name");
                    assert!(is_punct(&colon, ':'), "no kind follows ${name}");
                    let kind = tokens.next().expect("a kind follows a name");
                    Part::Variable(name.to_string(), kind.to_string())
                }
                name => Part::Variable(name.to_string(), String::new()),
            },
        });
    }
    found
}

fn is_punct(token: &TokenTree, sign: char) -> bool {
    matches!(token, TokenTree::Punct(punct) if punct.as_char() == sign)
}

fn is_sign(token: &TokenTree) -> bool {
    ['*', '+', '?'].into_iter().any(|sign| is_punct(token, sign))
}

/// The tokens that the variables took, if a matcher fits all of the tokens.
fn matched(matcher: &[Part], tokens: TokenStream) -> syn::Result<Bindings> {
    let parse = |input: ParseStream<'_>| {
        let bindings = take_all(matcher, input)?;
        input.is_empty().then_some(bindings).ok_or_else(|| input.error("more tokens"))
    };
    parse.parse2(tokens)
}

fn take_all(matcher: &[Part], input: ParseStream<'_>) -> syn::Result<Bindings> {
    let mut bindings = Bindings::new();
    for part in matcher {
        take(part, input, &mut bindings)?;
    }
    Ok(bindings)
}

fn take(part: &Part, input: ParseStream<'_>, bindings: &mut Bindings) -> syn::Result<()> {
    match part {
        Part::Token(token) => take_token(token, input)?,
        Part::Group(delimiter, inner) => {
            let token: TokenTree = input.parse()?;
            let TokenTree::Group(group) = token else { return Err(input.error("no group")) };
            if group.delimiter() != *delimiter {
                return Err(input.error("another delimiter"));
            }
            bindings.extend(matched(inner, group.stream())?);
        }
        Part::Variable(name, kind) => {
            let tokens = take_kind(kind, input)?;
            bindings.insert(name.clone(), Bound::Once(tokens));
        }
        Part::Repeat(inner, separator, most) => {
            let mut found: Vec<Bindings> = Vec::new();
            while !input.is_empty() && found.len() < *most {
                let ahead = input.fork();
                if let Some(separator) = separator.as_ref().filter(|_| !found.is_empty())
                    && take_token(separator, &ahead).is_err()
                {
                    break;
                }
                let before = ahead.cursor();
                match take_all(inner, &ahead) {
                    Ok(bindings) if ahead.cursor() != before => found.push(bindings),
                    _ => break,
                }
                syn::parse::discouraged::Speculative::advance_to(input, &ahead);
            }
            for name in names(inner) {
                bindings.insert(name, Bound::Each(found.clone()));
            }
        }
    }
    Ok(())
}

fn take_token(wanted: &TokenTree, input: ParseStream<'_>) -> syn::Result<()> {
    let token: TokenTree = input.parse()?;
    match token.to_string() == wanted.to_string() {
        true => Ok(()),
        false => Err(input.error("another token")),
    }
}

/// Takes the tokens of a fragment.
fn take_kind(kind: &str, input: ParseStream<'_>) -> syn::Result<TokenStream> {
    let from = input.cursor();
    match kind {
        "block" => drop(input.parse::<syn::Block>()?),
        "expr" => drop(input.parse::<syn::Expr>()?),
        "ident" => drop(input.call(syn::Ident::parse_any)?),
        "item" => drop(input.parse::<syn::Item>()?),
        "lifetime" => drop(input.parse::<syn::Lifetime>()?),
        "literal" => drop(input.parse::<syn::Lit>()?),
        "meta" => drop(input.parse::<syn::Meta>()?),
        "pat" => drop(syn::Pat::parse_multi(input)?),
        "path" => drop(input.parse::<syn::Path>()?),
        "stmt" => drop(input.parse::<syn::Stmt>()?),
        "tt" => drop(input.parse::<TokenTree>()?),
        "ty" => drop(input.parse::<syn::Type>()?),
        "vis" => drop(input.parse::<syn::Visibility>()?),
        other => return Err(input.error(format!("the kind {other}"))),
    }
    Ok(between(from, input.cursor()))
}

fn between(mut from: Cursor<'_>, to: Cursor<'_>) -> TokenStream {
    let mut tokens = TokenStream::new();
    while from != to {
        let Some((token, rest)) = from.token_tree() else { break };
        tokens.extend([token]);
        from = rest;
    }
    tokens
}

/// The variables of a part of a matcher.
fn names(matcher: &[Part]) -> Vec<String> {
    let of_part = |part: &Part| match part {
        Part::Token(_) => Vec::new(),
        Part::Variable(name, _) => vec![name.clone()],
        Part::Group(_, inner) | Part::Repeat(inner, ..) => names(inner),
    };
    matcher.iter().flat_map(of_part).collect()
}

/// A body, with the tokens of the variables.
fn filled(body: &[Part], bindings: &Bindings) -> TokenStream {
    let mut tokens = TokenStream::new();
    for part in body {
        match part {
            Part::Token(token) => tokens.extend([token.clone()]),
            Part::Group(delimiter, inner) => {
                let group = Group::new(*delimiter, filled(inner, bindings));
                tokens.extend([TokenTree::Group(group)]);
            }
            Part::Variable(name, _) => match bindings.get(name) {
                Some(Bound::Once(bound)) => tokens.extend(bound.clone()),
                Some(Bound::Each(_)) => panic!("${name} is repeated"),
                // `$crate`.
                None => tokens.extend([TokenTree::Ident(Ident::new(name, Span::call_site()))]),
            },
            Part::Repeat(inner, separator, _) => {
                let each = names(inner).into_iter().find_map(|name| match bindings.get(&name) {
                    Some(Bound::Each(each)) => Some(each),
                    _ => None,
                });
                for (index, own) in each.into_iter().flatten().enumerate() {
                    if let Some(separator) = separator.as_ref().filter(|_| index > 0) {
                        tokens.extend([separator.clone()]);
                    }
                    let mut bindings = bindings.clone();
                    bindings.extend(own.clone());
                    tokens.extend(filled(inner, &bindings));
                }
            }
        }
    }
    tokens
}

#[test]
fn macro_with_repetitions_is_expanded() {
    let rules = Rules::parse(
        "($($(#[$doc:meta])* $name:ident: $verb:literal -> $output:ty;)*) => {$(
            $(#[$doc])* pub fn $name(verb: $crate::Verb) -> $output { $verb }
        )*};
        (@one $item:item) => { #[cfg(unix)] $item };"
            .parse()
            .unwrap(),
    );
    // Two streams of the same tokens differ in the spaces between them.
    let packed = |tokens: TokenStream| tokens.to_string().replace(char::is_whitespace, "");
    let expand = |call: &str| rules.expand(&call.parse().unwrap()).map(packed);
    let tokens = |text: &str| Some(packed(text.parse().unwrap()));
    assert_eq!(
        expand("#[a] #[b = 1] read: \"r\" -> Vec<u8>; write: \"w\" -> ();"),
        tokens(
            "#[a] #[b = 1] pub fn read(verb: crate::Verb) -> Vec<u8> { \"r\" }
            pub fn write(verb: crate::Verb) -> () { \"w\" }"
        )
    );
    assert_eq!(expand("@one pub mod fs;"), tokens("#[cfg(unix)] pub mod fs;"));
    assert_eq!(expand("@two pub mod fs;"), None);
}
