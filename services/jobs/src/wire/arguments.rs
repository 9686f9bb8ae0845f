//! The arguments of a job: a JSON array and an object, bound to parameters as Python does.

use std::collections::BTreeMap;
use std::fmt;

use serde::de::DeserializeOwned;
use serde_json::value::RawValue;

use crate::wire::reason::shortened;

/// The arguments do not fit the job's parameters. Celery reports a `TypeError`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WrongArguments(String);

impl fmt::Display for WrongArguments {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for WrongArguments {}

/// The value of a missing argument, so that `Option`s may be omitted.
const MISSING: &str = "null";

/// Reads the arguments of a job: those of `args` in their order, the rest from `kwargs`. A missing
/// one is null.
///
/// # Errors
///
/// [`WrongArguments`]: too many, too few, of an unknown name, given twice, or of another type.
pub fn read_arguments<A: DeserializeOwned>(
    job: &str,
    parameters: &[&str],
    args: &str,
    kwargs: &str,
) -> Result<A, WrongArguments> {
    // The common case: all arguments are positional and valid.
    if kwargs == "{}" {
        if let Ok(arguments) = serde_json::from_str(args) {
            return Ok(arguments);
        }
    }
    let bound = bind(job, parameters, args, kwargs)?;
    let mut text = String::from("[");
    let mut ends = Vec::new();
    for value in &bound {
        if text.len() > 1 {
            text.push(',');
        }
        text.push_str(value.unwrap_or(MISSING));
        ends.push(text.len());
    }
    text.push(']');
    serde_json::from_str(&text).map_err(|error| {
        // The position of the error in the text tells which argument is wrong.
        let offset = byte_offset(&text, error.line(), error.column());
        let at = ends.iter().position(|end| offset <= *end).unwrap_or(0);
        let name = parameters.get(at).copied().unwrap_or_default();
        match bound.get(at) {
            Some(None) => wrong(format!("{job}() is missing the argument '{name}'")),
            _ => wrong(format!(
                "{job}() argument '{name}': {}",
                without_position(&error.to_string())
            )),
        }
    })
}

fn wrong(message: String) -> WrongArguments {
    WrongArguments(shortened(message))
}

fn bind<'a>(
    job: &str,
    parameters: &[&str],
    args: &'a str,
    kwargs: &'a str,
) -> Result<Vec<Option<&'a str>>, WrongArguments> {
    let not_json = |error: serde_json::Error| wrong(format!("{job}(): {error}"));
    let positional: Vec<&RawValue> = serde_json::from_str(args).map_err(not_json)?;
    let named: BTreeMap<std::borrow::Cow<'_, str>, &RawValue> =
        serde_json::from_str(kwargs).map_err(not_json)?;
    if positional.len() > parameters.len() {
        let (takes, given) = (parameters.len(), positional.len());
        return Err(wrong(format!("{job}() takes {takes} arguments but {given} were given")));
    }
    let mut bound: Vec<_> = positional.into_iter().map(|value| Some(value.get())).collect();
    bound.resize(parameters.len(), None);
    for (name, value) in named {
        let Some(at) = parameters.iter().position(|parameter| *parameter == name) else {
            return Err(wrong(format!("{job}() got an unexpected keyword argument '{name}'")));
        };
        if bound[at].replace(value.get()).is_some() {
            return Err(wrong(format!("{job}() got multiple values for argument '{name}'")));
        }
    }
    Ok(bound)
}

/// The byte offset of an error's line and column, which count from one.
fn byte_offset(text: &str, line: usize, column: usize) -> usize {
    let before: usize = text.split_inclusive('\n').take(line.saturating_sub(1)).map(str::len).sum();
    before + column
}

fn without_position(error: &str) -> &str {
    error.rfind(" at line ").map_or(error, |end| &error[..end])
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(args: &str, kwargs: &str) -> Result<(i64, String, Option<u8>), String> {
        read_arguments("greet", &["times", "name", "tone"], args, kwargs)
            .map_err(|error| error.to_string())
    }

    #[test]
    fn arguments_are_bound_as_in_python() {
        let all = Ok((2, "ann".to_owned(), Some(3)));
        assert_eq!(read(r#"[2, "ann", 3]"#, "{}"), all);
        assert_eq!(read("[2]", r#"{"tone": 3, "name": "ann"}"#), all);
        assert_eq!(read("[]", r#"{"tone": 3, "name": "ann", "times": 2}"#), all);
        assert_eq!(read("[2]", r#"{"name": "ann"}"#), Ok((2, "ann".to_owned(), None)));
        assert_eq!(read_arguments::<[(); 0]>("nothing", &[], "[]", "{}"), Ok([]));
        assert_eq!(read_arguments::<(i64,)>("one", &["it"], "[1]", "{}"), Ok((1,)));
    }

    #[test]
    fn errors_name_the_wrong_argument() {
        let error = |args, kwargs| read(args, kwargs).unwrap_err();
        assert_eq!(error("[1,2,3,4]", "{}"), "greet() takes 3 arguments but 4 were given");
        assert_eq!(error("[1]", "{}"), "greet() is missing the argument 'name'");
        assert_eq!(error("[]", r#"{"name": "ann"}"#), "greet() is missing the argument 'times'");
        assert_eq!(
            error("[1]", r#"{"mane": "ann"}"#),
            "greet() got an unexpected keyword argument 'mane'"
        );
        assert_eq!(
            error("[1, \"ann\"]", r#"{"name": "ann"}"#),
            "greet() got multiple values for argument 'name'"
        );
        assert_eq!(
            error("[1,\n 2]", "{}"),
            "greet() argument 'name': invalid type: integer `2`, expected a string"
        );
        assert_eq!(
            error("[1, \"a\", 256]", "{}"),
            "greet() argument 'tone': invalid value: integer `256`, expected u8"
        );
        assert!(error("[1, \"a\", nul]", "{}").starts_with("greet(): expected"));
    }
}
