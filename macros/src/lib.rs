//! The attribute macros of pikake. Use them through the `pikake` crate.
//!
//! Both turn an `async fn` into an ordinary function that runs it in a fresh kernel. They differ
//! in the attribute they leave behind: `#[pikake::test]` leaves `#[test]`.

use proc_macro::TokenStream;
use proc_macro2::{Span, TokenStream as Tokens};
use quote::quote;
use syn::meta::ParseNestedMeta;
use syn::spanned::Spanned;
use syn::{ItemFn, LitStr, parse_macro_input};

/// Runs an `async fn main` in a fresh kernel.
///
/// Options: `name = "…"`, the name of the main task; without it, that of the function.
#[proc_macro_attribute]
pub fn main(options: TokenStream, function: TokenStream) -> TokenStream {
    expand(options, function, quote!())
}

/// Makes a test of an `async fn`, which is run in a fresh kernel.
///
/// Options: as for `main`. The function may return whatever a test may return.
#[proc_macro_attribute]
pub fn test(options: TokenStream, function: TokenStream) -> TokenStream {
    expand(options, function, quote!(#[::core::prelude::v1::test]))
}

#[derive(Default)]
struct Options {
    name: Option<LitStr>,
}

impl Options {
    fn take(&mut self, meta: &ParseNestedMeta<'_>) -> syn::Result<()> {
        if meta.path.is_ident("name") {
            self.name = Some(meta.value()?.parse()?);
            return Ok(());
        }
        Err(meta.error("pikake knows the option `name = \"…\"`, and no other"))
    }
}

fn expand(options: TokenStream, function: TokenStream, attribute: Tokens) -> TokenStream {
    let mut found = Options::default();
    let parser = syn::meta::parser(|meta| found.take(&meta));
    parse_macro_input!(options with parser);
    let function = parse_macro_input!(function as ItemFn);
    rewrite(function, &found, &attribute).unwrap_or_else(|error| error.to_compile_error()).into()
}

fn rewrite(function: ItemFn, options: &Options, attribute: &Tokens) -> syn::Result<Tokens> {
    let ItemFn { attrs, vis, sig, block, .. } = function;
    if sig.asyncness.is_none() {
        let message = "this attribute runs an `async fn`; the function is not `async`";
        return Err(syn::Error::new(sig.fn_token.span(), message));
    }
    if !sig.inputs.is_empty() {
        let message = "a function that is run by this attribute takes no arguments";
        return Err(syn::Error::new(sig.inputs.span(), message));
    }
    let mut plain = sig.clone();
    plain.asyncness = None;
    let function_name = || LitStr::new(&sig.ident.to_string(), Span::call_site());
    let name = options.name.clone().unwrap_or_else(function_name);
    let output = match &sig.output {
        syn::ReturnType::Default => quote!(()),
        syn::ReturnType::Type(_, kind) => quote!(#kind),
    };
    Ok(quote! {
        #(#attrs)*
        #attribute
        #vis #plain {
            async fn __pikake_body() -> #output #block
            ::pikake::__macros::run(#name, __pikake_body())
        }
    })
}
