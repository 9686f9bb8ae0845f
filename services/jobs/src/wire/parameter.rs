//! One parameter of a job, and its argument in a message, as the key of a limit.

use std::collections::BTreeMap;

use serde_json::Value;
use serde_json::value::RawValue;

/// A parameter of a job whose argument is a key. Made by `#[pikake::job]`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Parameter {
    index: usize,
    name: &'static str,
}

impl Parameter {
    /// The parameter at this place, counted from 0, with this name.
    pub const fn new(index: usize, name: &'static str) -> Self {
        Self { index, name }
    }

    /// The argument, as JSON in one form; null if there is none.
    pub(crate) fn argument(self, args: &str, kwargs: &str) -> String {
        let by_place = || {
            let args: Vec<&RawValue> = serde_json::from_str(args).ok()?;
            args.get(self.index).map(|argument| argument.get().to_owned())
        };
        let by_name = || {
            let kwargs: BTreeMap<String, &RawValue> = serde_json::from_str(kwargs).ok()?;
            kwargs.get(self.name).map(|argument| argument.get().to_owned())
        };
        let text = by_place().or_else(by_name).unwrap_or_default();
        // Senders write spaces as they like.
        serde_json::from_str::<Value>(&text).unwrap_or_default().to_string()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arguments_by_place_and_by_name_are_the_same_key() {
        let parameter = Parameter::new(1, "user");
        let key = r#"{"id":1}"#;
        assert_eq!(parameter.argument(r#"["a", {"id": 1}]"#, "{}"), key);
        assert_eq!(parameter.argument(r#"["a"]"#, r#"{"user":{"id":1}}"#), key);
        assert_eq!(parameter.argument(r#"["a"]"#, "{}"), "null");
        assert_eq!(parameter.argument("no JSON", "{}"), "null");
    }
}
