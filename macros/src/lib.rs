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
/// Options:
///
/// * `name = "…"`: the name of the main task; without it, that of the function.
/// * `signals`: the first SIGINT or SIGTERM interrupts the main task; see
///   `pikake::interrupt_on_signals`.
#[proc_macro_attribute]
pub fn main(options: TokenStream, function: TokenStream) -> TokenStream {
    expand(Options { may_handle_signals: true, ..Options::default() }, options, function)
}

/// Makes a test of an `async fn`, which is run in a fresh kernel.
///
/// Options: `name`, as for `main`. The function may return whatever a test may return.
#[proc_macro_attribute]
pub fn test(options: TokenStream, function: TokenStream) -> TokenStream {
    let attribute = quote!(#[::core::prelude::v1::test]);
    expand(Options { attribute, ..Options::default() }, options, function)
}

#[derive(Default)]
struct Options {
    /// What is put before the function.
    attribute: Tokens,
    name: Option<LitStr>,
    /// Signals are the process's, and a test does not have one to itself.
    may_handle_signals: bool,
    signals: bool,
}

impl Options {
    fn take(&mut self, meta: &ParseNestedMeta<'_>) -> syn::Result<()> {
        if meta.path.is_ident("name") {
            self.name = Some(meta.value()?.parse()?);
            return Ok(());
        }
        if !self.may_handle_signals {
            return Err(meta.error("this attribute knows the option `name = \"…\"`, and no other"));
        }
        if !meta.path.is_ident("signals") {
            let message =
                "this attribute knows the options `name = \"…\"` and `signals`, and no other";
            return Err(meta.error(message));
        }
        if !cfg!(feature = "signals") {
            return Err(meta.error("the option `signals` needs the feature `signals` of pikake"));
        }
        self.signals = true;
        Ok(())
    }
}

fn expand(mut found: Options, options: TokenStream, function: TokenStream) -> TokenStream {
    let parser = syn::meta::parser(|meta| found.take(&meta));
    parse_macro_input!(options with parser);
    let function = parse_macro_input!(function as ItemFn);
    rewrite(function, &found).unwrap_or_else(|error| error.to_compile_error()).into()
}

fn rewrite(function: ItemFn, options: &Options) -> syn::Result<Tokens> {
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
    let run = match options.signals {
        true => quote!(run_until_signal),
        false => quote!(run),
    };
    let attribute = &options.attribute;
    Ok(quote! {
        #(#attrs)*
        #attribute
        #vis #plain {
            async fn __pikake_body() -> #output #block
            ::pikake::__macros::#run(#name, __pikake_body())
        }
    })
}
