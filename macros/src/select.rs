//! `select!`: waits for the first of several futures.
//!
//! The expansion polls all branches in one `poll_fn`, whose output is a variant of an enum made for
//! this call. The futures are in a block of their own, so they are dropped before the handler runs.
//! The handler is outside of any closure, so it may `return`, `break` and await.
//!
//! A pattern that can fail is tried without taking the value apart: an arm with the pattern has a
//! guard that notes the match and refuses, and the next arm takes the whole value.

use proc_macro2::{Ident, Span, TokenStream as Tokens};
use quote::quote_spanned;
use syn::ext::IdentExt;
use syn::parse::{Parse, ParseStream};
use syn::spanned::Spanned;
use syn::{Expr, Pat, Token, bracketed};

/// The arguments of `select!`.
pub(crate) struct Select {
    /// The path of the `pikake` crate.
    krate: Ident,
    is_biased: bool,
    branches: Vec<Branch>,
    otherwise: Option<Expr>,
}

/// `pattern = future, if precondition => handler`.
struct Branch {
    pattern: Pat,
    future: Expr,
    precondition: Option<Expr>,
    handler: Expr,
}

impl Parse for Select {
    fn parse(input: ParseStream<'_>) -> syn::Result<Self> {
        let path;
        bracketed!(path in input);
        let krate = path.call(Ident::parse_any)?;
        let is_biased = is_biased(input);
        if is_biased {
            input.call(Ident::parse_any)?;
            input.parse::<Token![;]>()?;
        }
        let (mut branches, mut otherwise) = (Vec::new(), None);
        while !input.is_empty() {
            if let Some(last) = input.parse::<Option<Token![else]>>()? {
                input.parse::<Token![=>]>()?;
                otherwise = Some(handler(input)?);
                if !input.is_empty() {
                    return Err(syn::Error::new(last.span, "`else` must be the last branch"));
                }
            } else {
                branches.push(input.parse()?);
            }
        }
        if branches.is_empty() {
            let message = "`select!` needs a branch: `pattern = future => expression`";
            return Err(syn::Error::new(Span::call_site(), message));
        }
        Ok(Self { krate, is_biased, branches, otherwise })
    }
}

fn is_biased(input: ParseStream<'_>) -> bool {
    let fork = input.fork();
    fork.parse::<Ident>().is_ok_and(|first| first == "biased") && fork.peek(Token![;])
}

impl Parse for Branch {
    fn parse(input: ParseStream<'_>) -> syn::Result<Self> {
        let pattern = Pat::parse_multi_with_leading_vert(input)?;
        input.parse::<Token![=]>()?;
        let future = input.parse()?;
        let precondition = match input.parse::<Option<Token![,]>>()? {
            Some(_) => {
                input.parse::<Token![if]>()?;
                Some(input.parse()?)
            }
            None => None,
        };
        input.parse::<Token![=>]>()?;
        Ok(Self { pattern, future, precondition, handler: handler(input)? })
    }
}

/// An expression, with the comma behind it, as in an arm of a `match`.
fn handler(input: ParseStream<'_>) -> syn::Result<Expr> {
    let handler = Expr::parse_with_earlier_boundary_rule(input)?;
    let ends_itself = matches!(
        handler,
        Expr::Block(_)
            | Expr::ForLoop(_)
            | Expr::If(_)
            | Expr::Loop(_)
            | Expr::Match(_)
            | Expr::Unsafe(_)
            | Expr::While(_)
    );
    if input.parse::<Option<Token![,]>>()?.is_none() && !ends_itself && !input.is_empty() {
        return Err(input.error("expected `,` between two branches"));
    }
    Ok(handler)
}

pub(crate) fn expand(select: Select) -> Tokens {
    let Select { krate, is_biased, branches, otherwise } = select;
    // Variables of the expansion are not those of the program, whatever their names are.
    let site = Span::mixed_site();
    let count = branches.len();
    let named = |name: &'static str| {
        (0..count)
            .map(move |number| Ident::new(&format!("{name}{number}"), site))
            .collect::<Vec<_>>()
    };
    let (kinds, futures) = (named("Branch"), named("future"));

    let preconditions = branches.iter().map(|branch| match &branch.precondition {
        Some(precondition) => quote_spanned!(site=> #precondition),
        None => quote_spanned!(site=> true),
    });
    let made = branches.iter().map(|Branch { future, .. }| {
        quote_spanned!(future.span()=> ::core::future::IntoFuture::into_future(#future))
    });
    // The last one is pinned first, so the futures are dropped from the first to the last.
    let pinned = futures
        .iter()
        .rev()
        .map(|future| quote_spanned!(site=> let mut #future = ::core::pin::pin!(#future);));
    let polls = branches.iter().zip(&futures).zip(&kinds).enumerate().map(|(number, parts)| {
        let ((Branch { pattern, .. }, future), kind) = parts;
        quote_spanned! {site=>
            #number => match ::core::future::Future::poll(#future.as_mut(), cx) {
                ::core::task::Poll::Pending => is_pending = true,
                ::core::task::Poll::Ready(value) => {
                    let mut is_match = false;
                    let value = match value {
                        #[allow(unused_variables, unused_mut)]
                        #pattern if { is_match = true; false } => ::core::unreachable!(),
                        value => value,
                    };
                    if is_match {
                        return ::core::task::Poll::Ready(PikakeSelected::#kind(value));
                    }
                    is_enabled[#number] = false;
                }
            },
        }
    });
    let order = match is_biased {
        true => quote_spanned!(site=> 0..#count),
        false => quote_spanned!(site=> #krate::__macros::branch_order::<#count>()),
    };
    let handlers = branches.iter().zip(&kinds).map(|(Branch { pattern, handler, .. }, kind)| {
        quote_spanned!(site=> PikakeSelected::#kind(#pattern) => #handler,)
    });
    let otherwise = match otherwise {
        Some(otherwise) => quote_spanned!(site=> #otherwise),
        None => {
            quote_spanned!(site=> ::core::panic!("all branches of `select!` are disabled, and it has no `else`"))
        }
    };

    quote_spanned! {site=> {
        enum PikakeSelected<#(#kinds),*> {
            #(#kinds(#kinds),)*
            Nothing,
        }
        let selected = {
            let mut is_enabled = [#(#preconditions),*];
            let (#(#futures,)*) = (#(#made,)*);
            #(#pinned)*
            ::core::future::poll_fn(|cx| {
                let mut is_pending = false;
                for branch in #order {
                    if !is_enabled[branch] {
                        continue;
                    }
                    match branch {
                        #(#polls)*
                        _ => ::core::unreachable!(),
                    }
                }
                match is_pending {
                    true => ::core::task::Poll::Pending,
                    false => ::core::task::Poll::Ready(PikakeSelected::Nothing),
                }
            })
            .await
        };
        match selected {
            #(#handlers)*
            PikakeSelected::Nothing => #otherwise,
            #[allow(unreachable_patterns)]
            _ => ::core::unreachable!("a branch of `select!` is chosen if its pattern matches"),
        }
    }}
}
