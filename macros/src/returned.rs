//! What a function returns, as its signature is written.

use proc_macro2::TokenStream as Tokens;
use quote::quote;
use syn::{GenericArgument, PathArguments, ReturnType, Type};

/// The type of the value, and whether the signature has it inside a `Result`.
pub(crate) fn value_of(output: &ReturnType) -> (Tokens, bool) {
    let kind = match output {
        ReturnType::Default => return (quote!(()), false),
        ReturnType::Type(_, kind) => &**kind,
    };
    match argument_of("Result", kind) {
        Some(value) => (quote!(#value), true),
        None => (quote!(#kind), false),
    }
}

/// The first argument of a type of this name, such as `Result`.
pub(crate) fn argument_of<'a>(name: &str, kind: &'a Type) -> Option<&'a Type> {
    let Type::Path(path) = kind else { return None };
    let last = path.path.segments.last().filter(|last| last.ident == name)?;
    let PathArguments::AngleBracketed(arguments) = &last.arguments else { return None };
    match arguments.args.first()? {
        GenericArgument::Type(value) => Some(value),
        _ => None,
    }
}
