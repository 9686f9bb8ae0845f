//! `#[pikake::service]`: makes a client and a server of a trait.
//!
//! The trait stays as it is, without the attributes that are the service's own. The client has a
//! method for each of the trait's. The server finds a method by its index, counted without those
//! that a `cfg` leaves out.

use std::collections::BTreeSet;

use proc_macro2::{Span, TokenStream as Tokens, TokenTree};
use quote::{ToTokens, format_ident, quote, quote_spanned};
use syn::ext::IdentExt;
use syn::meta::ParseNestedMeta;
use syn::spanned::Spanned;
use syn::{
    Attribute, Error, Expr, ExprLit, FnArg, GenericArgument, Ident, ItemTrait, Lit, LitStr, Pat,
    PatType, Path, PathArguments, ReceiverKind, ReturnType, Safety, Signature, TraitItem,
    TraitItemFn, Type, Visibility,
};

use crate::returned::value_of;

/// The items of the client beside the methods of the trait.
const OF_THE_CLIENT: [&str; 3] = ["METHODS", "clone", "new"];
/// The attributes in the trait that the method of the client keeps.
const KEPT: [&str; 4] = ["cfg", "cfg_attr", "deprecated", "doc"];

#[derive(Default)]
pub(crate) struct ServiceOptions {
    krate: Option<Path>,
    name: Option<LitStr>,
}

impl ServiceOptions {
    pub(crate) fn take(&mut self, meta: &ParseNestedMeta<'_>) -> syn::Result<()> {
        if meta.path.is_ident("crate") {
            self.krate = Some(meta.value()?.parse()?);
        } else if meta.path.is_ident("name") {
            let name: LitStr = meta.value()?.parse()?;
            check_name(&name)?;
            self.name = Some(name);
        } else {
            return Err(meta.error("a service has only the options `name` and `crate`"));
        }
        Ok(())
    }
}

struct Method {
    name: Ident,
    /// The name in messages.
    sent_as: String,
    /// The documentation, conditions and the like.
    attributes: Vec<Attribute>,
    arguments: Vec<(Ident, Type)>,
    output: ReturnType,
    is_idempotent: bool,
    is_notice: bool,
}

pub(crate) fn rewrite(mut item: ItemTrait, options: &ServiceOptions) -> syn::Result<Tokens> {
    if let Some(unsafety) = &item.unsafety {
        return Err(Error::new(unsafety.span(), "a service is an ordinary trait"));
    }
    if !item.generics.params.is_empty() {
        return Err(Error::new_spanned(&item.generics, "a service has no generic parameters"));
    }
    let mut methods = Vec::new();
    for part in &mut item.items {
        let TraitItem::Fn(function) = part else {
            return Err(Error::new_spanned(part, "a service has methods only"));
        };
        methods.push(method(function)?);
    }
    check_names(&methods)?;

    let rpc = options.krate.as_ref().map_or_else(|| quote!(::pikake::rpc), |path| quote!(#path));
    let (service, vis) = (&item.ident, &item.vis);
    let cfgs: Vec<_> =
        item.attrs.iter().filter(|attribute| attribute.path().is_ident("cfg")).collect();
    let bare = service.unraw().to_string();
    let sent_as = options.name.as_ref().map_or_else(|| bare.clone(), LitStr::value);
    let client = format_ident!("{bare}Client", span = service.span());
    let server = format_ident!("{bare}Server", span = service.span());
    let client_doc = format!("Calls the methods of [`{bare}`] at a server.");
    let server_doc = format!("Offers an implementation of [`{bare}`] to clients.");
    let rows: Vec<_> = methods.iter().map(|method| method.row(&rpc, &sent_as)).collect();
    let conditions: Vec<Vec<_>> =
        methods.iter().map(|method| method.conditions().collect()).collect();
    let calls = methods.iter().zip(&rows).map(|(method, row)| method.call(&rpc, vis, row));
    let indices: Vec<_> = (0..methods.len()).map(|index| format_ident!("__M{index}")).collect();
    let arms = methods.iter().map(|method| method.arm(&rpc, service));
    let forwards = methods.iter().map(|method| method.forward(service));
    let supertraits = (!item.supertraits.is_empty()).then(|| {
        let bounds = &item.supertraits;
        quote!(where ::std::rc::Rc<__S>: #bounds)
    });
    // What stands in one scope with arguments of the user.
    let (index, arguments) = (local("index"), local("arguments"));
    Ok(quote! {
        #[allow(async_fn_in_trait)]
        #item

        #(#cfgs)*
        #[allow(deprecated, clippy::too_many_arguments)]
        impl<__S: #service> #service for ::std::rc::Rc<__S> #supertraits {
            #(#forwards)*
        }

        #(#cfgs)*
        #[doc = #client_doc]
        #[allow(dead_code)]
        #[derive(::core::clone::Clone, ::core::fmt::Debug)]
        #vis struct #client {
            client: #rpc::Client,
        }

        #(#cfgs)*
        #[allow(dead_code, clippy::missing_errors_doc, clippy::too_many_arguments)]
        impl #client {
            /// The methods of the service, in the order of the trait.
            #vis const METHODS: &'static [#rpc::Method] = &[#(#(#conditions)* #rows),*];

            /// Calls by the connections of `client`.
            #vis fn new(client: #rpc::Client) -> Self {
                Self { client }
            }

            #(#calls)*
        }

        #(#cfgs)*
        #[doc = #server_doc]
        #[allow(dead_code)]
        #[derive(::core::fmt::Debug)]
        #vis struct #server<__S>(__S);

        #(#cfgs)*
        #[allow(dead_code)]
        impl<__S: #service + 'static> #server<__S> {
            /// Offers `service`.
            #vis fn new(service: __S) -> Self {
                Self(service)
            }
        }

        #(#cfgs)*
        impl<__S: #service + 'static> #rpc::Service for #server<__S> {
            fn methods(&self) -> &'static [#rpc::Method] {
                #client::METHODS
            }

            #[allow(deprecated, unused_mut, unused_variables)]
            fn call(
                self: ::std::rc::Rc<Self>,
                #index: usize,
                mut #arguments: #rpc::ArgumentReader<'_>,
            ) -> ::core::result::Result<#rpc::Handler, ::std::string::String> {
                enum __Index {
                    #(#(#conditions)* #indices),*
                }
                #(#(#conditions)* const #indices: usize = __Index::#indices as usize;)*
                match #index {
                    #(#(#conditions)* #indices => #arms)*
                    _ => ::core::result::Result::Err(::std::string::String::from("no such method")),
                }
            }
        }
    })
}

/// A variable that no name of the user's means.
fn local(name: &str) -> Ident {
    Ident::new(name, Span::mixed_site())
}

/// Where errors about a type point. Names there mean what they mean in the rest of the expansion.
fn at(kind: &Type) -> Span {
    kind.span().resolved_at(Span::call_site())
}

/// Checks a method, and takes the attributes that are the service's off it.
fn method(function: &mut TraitItemFn) -> syn::Result<Method> {
    let signature = &function.sig;
    check_signature(signature)?;
    let mut arguments = Vec::new();
    for input in signature.inputs.iter().skip(1) {
        let FnArg::Typed(typed) = input else { continue };
        arguments.push((argument(typed)?, (*typed.ty).clone()));
    }
    if let ReturnType::Type(_, kind) = &signature.output {
        check_type(kind, "an answer")?;
    }
    let mut method = Method {
        name: signature.ident.clone(),
        sent_as: signature.ident.unraw().to_string(),
        attributes: Vec::new(),
        arguments,
        output: signature.output.clone(),
        is_idempotent: false,
        is_notice: false,
    };
    for attribute in std::mem::take(&mut function.attrs) {
        if !method.take(&attribute)? {
            if KEPT.iter().any(|kept| attribute.path().is_ident(kept)) {
                method.attributes.push(attribute.clone());
            }
            function.attrs.push(attribute);
        }
    }
    if let (true, ReturnType::Type(_, kind)) = (method.is_notice, &method.output) {
        return Err(Error::new_spanned(kind, "nobody waits for the value of a notice"));
    }
    Ok(method)
}

fn check_signature(signature: &Signature) -> syn::Result<()> {
    if signature.asyncness.is_none() {
        let message = "a method of a service is an `async fn`";
        return Err(Error::new(signature.fn_token.span(), message));
    }
    let is_unsafe = matches!(signature.safety, Safety::Unsafe(_));
    let abi = signature.abi.as_ref().map(Spanned::span);
    if let Some(span) = abi.or_else(|| is_unsafe.then(|| signature.safety.span())) {
        return Err(Error::new(span, "a method of a service is an ordinary method"));
    }
    let generics = &signature.generics;
    if !generics.params.is_empty() {
        let message = "a method of a service has no generic parameters";
        return Err(Error::new_spanned(generics, message));
    }
    if let Some(clause) = &generics.where_clause {
        return Err(Error::new_spanned(clause, "a method of a service has no `where` clause"));
    }
    match signature.inputs.first() {
        Some(FnArg::Receiver(receiver)) => match receiver.kind {
            ReceiverKind::Reference(_, _, None) => Ok(()),
            _ => Err(Error::new_spanned(receiver, "calls share the service, so it is `&self`")),
        },
        _ => Err(Error::new(signature.ident.span(), "a method of a service takes `&self`")),
    }
}

/// The name of an argument.
fn argument(typed: &PatType) -> syn::Result<Ident> {
    let is_condition = |attribute: &&Attribute| {
        ["cfg", "cfg_attr"].iter().any(|cfg| attribute.path().is_ident(cfg))
    };
    if let Some(attribute) = typed.attrs.iter().find(is_condition) {
        let message =
            "an argument cannot be conditional: the other side may be built with other features";
        return Err(Error::new_spanned(attribute, message));
    }
    check_type(&typed.ty, "an argument")?;
    match &*typed.pat {
        Pat::Ident(pattern) if pattern.by_ref.is_none() && pattern.subpat.is_none() => {
            Ok(pattern.ident.clone())
        }
        other => {
            let message = "an argument has a name, which errors of the other side tell";
            Err(Error::new_spanned(other, message))
        }
    }
}

fn check_type(kind: &Type, what: &str) -> syn::Result<()> {
    if let Type::ImplTrait(kind) = kind {
        let message = format!("{what} travels, so its type has a name");
        return Err(Error::new_spanned(kind, message));
    }
    if let Some(span) = reference(kind.to_token_stream()) {
        let message = format!(
            "{what} travels, so nothing of it is borrowed: `String` instead of `&str`, `Vec<T>` instead of `&[T]`"
        );
        let whole = matches!(kind, Type::Reference(_)).then(|| kind.to_token_stream());
        return Err(whole.map_or_else(
            || Error::new(span, &message),
            |kind| Error::new_spanned(kind, &message),
        ));
    }
    Ok(())
}

/// The first `&` of a type.
fn reference(tokens: Tokens) -> Option<Span> {
    tokens.into_iter().find_map(|token| match token {
        TokenTree::Punct(mark) if mark.as_char() == '&' => Some(mark.span()),
        TokenTree::Group(group) => reference(group.stream()),
        _ => None,
    })
}

fn check_name(name: &LitStr) -> syn::Result<()> {
    match name.value().is_empty() {
        true => Err(Error::new(name.span(), "a name has at least one character")),
        false => Ok(()),
    }
}

/// Checks the names of all methods beside each other, and beside those of the client.
fn check_names(methods: &[Method]) -> syn::Result<()> {
    let (mut names, mut sent) = (BTreeSet::new(), BTreeSet::new());
    for method in methods {
        let name = method.name.unraw().to_string();
        if OF_THE_CLIENT.contains(&&*name) {
            let message = format!(
                "the client has a `{name}` of its own: rename the method, \
                 with `#[name = \"{name}\"]` if clients call it by this name"
            );
            return Err(Error::new(method.name.span(), message));
        }
        // Methods under conditions may exclude each other.
        if method.conditions().next().is_some() {
            continue;
        }
        if !names.insert(name) {
            let message = "a service has one method of a name";
            return Err(Error::new(method.name.span(), message));
        }
        if !sent.insert(&method.sent_as) {
            let message = format!("another method has the name `{}` in messages", method.sent_as);
            return Err(Error::new(method.name.span(), message));
        }
    }
    Ok(())
}

impl Method {
    /// Takes an attribute that is the service's own. Returns whether it is.
    fn take(&mut self, attribute: &Attribute) -> syn::Result<bool> {
        let path = attribute.path();
        if path.is_ident("idempotent") {
            attribute.meta.require_path_only()?;
            self.is_idempotent = true;
        } else if path.is_ident("notice") {
            attribute.meta.require_path_only()?;
            self.is_notice = true;
        } else if path.is_ident("name") {
            let Expr::Lit(ExprLit { lit: Lit::Str(name), .. }) =
                &attribute.meta.require_name_value()?.value
            else {
                return Err(Error::new_spanned(attribute, "a name is a text: `#[name = \"…\"]`"));
            };
            check_name(name)?;
            self.sent_as = name.value();
        } else {
            return Ok(false);
        }
        if self.is_notice && self.is_idempotent {
            let message = "a notice has no answer, so nobody knows when to try it again";
            return Err(Error::new_spanned(attribute, message));
        }
        Ok(true)
    }

    fn conditions(&self) -> impl Iterator<Item = &Attribute> {
        self.attributes.iter().filter(|attribute| attribute.path().is_ident("cfg"))
    }

    /// The constant that describes the method.
    fn row(&self, rpc: &Tokens, service: &str) -> Tokens {
        let method = &self.sent_as;
        let name = format!("{service}.{method}");
        let idempotent = self.is_idempotent.then(|| quote!(.idempotent()));
        let notice = self.is_notice.then(|| quote!(.notice()));
        quote!(#rpc::Method::new(#name, #service, #method)#idempotent #notice)
    }

    /// The method of the client.
    fn call(&self, rpc: &Tokens, vis: &Visibility, row: &Tokens) -> Tokens {
        let Self { name, attributes, arguments, output, .. } = self;
        let (call, write, writer) = (local("call"), local("write"), local("writer"));
        let (names, types): (Vec<_>, Vec<_>) = arguments.iter().cloned().unzip();
        let puts =
            arguments.iter().map(|(name, kind)| quote_spanned!(at(kind)=> #writer.put(&#name)?;));
        let (returned, finish) = self.returned(rpc);
        let finish = match output {
            ReturnType::Default => quote!(#call #finish),
            ReturnType::Type(_, kind) => quote_spanned!(at(kind)=> #call #finish),
        };
        quote! {
            #(#attributes)*
            #[track_caller]
            #vis fn #name(
                &self,
                #(#names: #types),*
            ) -> impl ::core::future::Future<Output = #returned> + use<> {
                const __METHOD: #rpc::Method = #row;
                let #write = move |#writer: &mut #rpc::ArgumentWriter<'_>| {
                    #(#puts)*
                    let _ = #writer;
                    ::core::result::Result::Ok(())
                };
                self.client.call(&__METHOD, #write, |#call| -> #returned { #finish })
            }
        }
    }

    /// The type that the client's method returns, and the code that makes it of an answer.
    fn returned(&self, rpc: &Tokens) -> (Tokens, Tokens) {
        let ReturnType::Type(_, kind) = &self.output else {
            let finish = match self.is_notice {
                true => quote!(.map(::core::mem::drop)),
                false => quote!(?.value()),
            };
            return (quote!(::core::result::Result<(), #rpc::CallError>), finish);
        };
        let span = at(kind);
        if !value_of(&self.output).1 {
            let returned = quote_spanned!(span=> ::core::result::Result<#kind, #rpc::CallError>);
            return (returned, quote_spanned!(span=> ?.value()));
        }
        let (value, error) = match parts_of_result(kind) {
            Some((value, error)) => (quote!(#value), quote!(#error)),
            None => (
                quote_spanned!(span=> <#kind as #rpc::Returned>::Value),
                quote_spanned!(span=> <#kind as #rpc::Returned>::Error),
            ),
        };
        let returned = quote_spanned!(span=> ::core::result::Result<#value, #rpc::Error<#error>>);
        (returned, quote_spanned!(span=> ?.result()))
    }

    /// The method of an implementation that several owners share.
    fn forward(&self, service: &Ident) -> Tokens {
        let Self { name, arguments, output, .. } = self;
        let conditions = self.conditions();
        let (names, types): (Vec<_>, Vec<_>) = arguments.iter().cloned().unzip();
        quote! {
            #(#conditions)*
            async fn #name(&self, #(#names: #types),*) #output {
                #service::#name(&**self, #(#names),*).await
            }
        }
    }

    /// The arm of the server.
    fn arm(&self, rpc: &Tokens, service: &Ident) -> Tokens {
        let Self { name, arguments, output, .. } = self;
        let reader = local("arguments");
        let names: Vec<_> = arguments.iter().map(|(name, _)| name).collect();
        let takes = arguments.iter().map(|(name, kind)| {
            let text = name.unraw().to_string();
            quote_spanned!(at(kind)=> let #name: #kind = #reader.take(#text)?;)
        });
        let span = match output {
            ReturnType::Default => Span::call_site(),
            ReturnType::Type(_, kind) => at(kind),
        };
        let answer = match value_of(output).1 {
            true => quote_spanned!(span=> #rpc::Answer::result),
            false => quote_spanned!(span=> #rpc::Answer::value),
        };
        let answer = quote_spanned!(span=> #answer(#service::#name(&self.0, #(#names),*).await));
        quote! {
            {
                #(#takes)*
                ::core::result::Result::Ok(::std::boxed::Box::pin(async move { #answer }))
            }
        }
    }
}

/// The types of a `Result` that is written with both.
fn parts_of_result(kind: &Type) -> Option<(&Type, &Type)> {
    let Type::Path(path) = kind else { return None };
    let PathArguments::AngleBracketed(arguments) = &path.path.segments.last()?.arguments else {
        return None;
    };
    let mut types = arguments.args.iter();
    match (types.next()?, types.next()?, types.next()) {
        (GenericArgument::Type(value), GenericArgument::Type(error), None) => Some((value, error)),
        _ => None,
    }
}

#[cfg(test)]
#[path = "service_tests.rs"]
mod tests;
