//! `#[pikake::job]`: makes a job of a function.
//!
//! The function stays as it is. Beside it stands a type of its name, a struct with braces: such a
//! name is in the namespace of types alone, so no pattern and no variable can meet it.

use proc_macro2::{Span, TokenStream as Tokens};
use quote::{quote, quote_spanned};
use syn::ext::IdentExt;
use syn::meta::ParseNestedMeta;
use syn::spanned::Spanned;
use syn::{
    Attribute, Error, Expr, ExprLit, FnArg, Ident, ItemFn, Lit, LitInt, LitStr, Meta, Pat, Path,
    ReturnType, Safety, Type,
};

use crate::returned::{argument_of, value_of};

/// The size of the largest tuple that serde reads.
const MOST_ARGUMENTS: usize = 16;

#[derive(Default)]
pub(crate) struct JobOptions {
    krate: Option<Path>,
    name: Option<LitStr>,
    /// `__options.field = value;` for each given option.
    settings: Vec<Tokens>,
    /// The options that name an argument.
    keys: Vec<(&'static str, LitStr)>,
    /// `unique_for`, and the first of the options that need it.
    unique_for: Option<Tokens>,
    needs_unique: Option<Span>,
    unique_until: Option<Tokens>,
    unique_by: Option<LitStr>,
    blocking: Option<Span>,
    process: Option<Span>,
    batch: Option<Batch>,
}

/// The size and the wait of a batch, and the option that sets them.
struct Batch {
    size: LitInt,
    wait: Tokens,
    span: Span,
}

impl JobOptions {
    pub(crate) fn take(&mut self, meta: &ParseNestedMeta<'_>) -> syn::Result<()> {
        let name = meta.path.get_ident().map(ToString::to_string).unwrap_or_default();
        match name.as_str() {
            "crate" => self.krate = Some(meta.value()?.parse()?),
            "name" => self.name = Some(meta.value()?.parse()?),
            "queue" => {
                let queue: LitStr = meta.value()?.parse()?;
                self.set("queue", quote!(::core::option::Option::Some(#queue)));
            }
            "retries" | "priority" => {
                let count: LitInt = meta.value()?.parse()?;
                self.set(&name, quote!(#count));
            }
            "soft_limit" | "hard_limit" | "expires" => {
                let length = duration(meta)?;
                self.set(&name, quote!(::core::option::Option::Some(#length)));
            }
            "rate" => {
                let nanos = rate(&meta.value()?.parse()?)?;
                let interval = quote!(::core::time::Duration::from_nanos(#nanos));
                let rate = quote!(__jobs::Rate::spaced(#interval));
                self.set("rate", quote!(::core::option::Option::Some(#rate)));
            }
            "rate_by" => self.keys.push(("rate_by", meta.value()?.parse()?)),
            "unique_for" => self.unique_for = Some(duration(meta)?),
            "unique_until" => {
                self.needs_unique = Some(meta.path.span());
                let until: LitStr = meta.value()?.parse()?;
                self.unique_until = Some(match until.value().as_str() {
                    "begun" => quote!(Begun),
                    "ended" => quote!(Ended),
                    "elapsed" => quote!(Elapsed),
                    _ => {
                        let message = "a job is unique until it has \"begun\" or \"ended\", or until \
                             `unique_for` has \"elapsed\"";
                        return Err(Error::new(until.span(), message));
                    }
                });
            }
            "unique_by" => {
                self.needs_unique = Some(meta.path.span());
                self.unique_by = Some(meta.value()?.parse()?);
            }
            "backoff" => self.backoff(meta)?,
            "batch" => self.batch(meta)?,
            "acks" => {
                let acks: LitStr = meta.value()?.parse()?;
                let variant = match acks.value().as_str() {
                    "early" => quote!(Early),
                    "late" => quote!(Late),
                    _ => return Err(Error::new(acks.span(), "acks are \"early\" or \"late\"")),
                };
                self.set("acks", quote!(__jobs::Acks::#variant));
            }
            "ignore_result" => self.set("ignore_result", quote!(true)),
            "blocking" => self.blocking = Some(meta.path.span()),
            "process" => self.process = Some(meta.path.span()),
            _ => {
                let message = "a job has only the options `name`, `queue`, `retries`, `backoff`, \
                     `soft_limit`, `hard_limit`, `acks`, `blocking`, `process`, `priority`, \
                     `expires`, `ignore_result`, `rate`, `rate_by`, `unique_for`, `unique_until`, `unique_by`, \
                     `batch` and `crate`";
                return Err(meta.error(message));
            }
        }
        Ok(())
    }

    fn set(&mut self, field: &str, value: Tokens) {
        let field = Ident::new(field, Span::call_site());
        self.settings.push(quote!(__options.#field = #value;));
    }

    fn batch(&mut self, meta: &ParseNestedMeta<'_>) -> syn::Result<()> {
        let span = meta.path.span();
        let (mut size, mut wait) = (None, None);
        meta.parse_nested_meta(|part| {
            match () {
                () if part.path.is_ident("size") => size = Some(part.value()?.parse::<LitInt>()?),
                () if part.path.is_ident("wait") => wait = Some(duration(&part)?),
                () => return Err(part.error("a batch has a `size` and a `wait`")),
            }
            Ok(())
        })?;
        let (Some(size), Some(wait)) = (size, wait) else {
            return Err(Error::new(span, "a batch has a `size` and a `wait`"));
        };
        if !size.base10_parse::<u16>().is_ok_and(|size| size > 0) {
            return Err(Error::new(size.span(), "a batch has 1 to 65535 messages"));
        }
        self.batch = Some(Batch { size, wait, span });
        Ok(())
    }

    fn backoff(&mut self, meta: &ParseNestedMeta<'_>) -> syn::Result<()> {
        let (mut first, mut cap) = (None, None);
        meta.parse_nested_meta(|part| {
            match () {
                () if part.path.is_ident("first") => first = Some(duration(&part)?),
                () if part.path.is_ident("cap") => cap = Some(duration(&part)?),
                () => return Err(part.error("a back-off has a `first` and a `cap`")),
            }
            Ok(())
        })?;
        for (field, length) in [("first", first), ("cap", cap)] {
            if let Some(length) = length {
                let field = Ident::new(field, Span::call_site());
                self.settings.push(quote!(__options.backoff.#field = #length;));
            }
        }
        Ok(())
    }
}

/// Parses `"500ms"`, `"30s"`, `"10m"`, `"2h"`, or a number of seconds.
fn duration(meta: &ParseNestedMeta<'_>) -> syn::Result<Tokens> {
    let literal: Lit = meta.value()?.parse()?;
    let wrong = || {
        Error::new(literal.span(), "a length is \"500ms\", \"30s\", \"10m\", \"2h\", or seconds")
    };
    let text = match &literal {
        Lit::Str(text) => text.value(),
        Lit::Int(number) => format!("{number}s"),
        Lit::Float(number) => format!("{number}s"),
        _ => return Err(wrong()),
    };
    let digits = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    let (number, unit) = text.split_at(digits);
    let millis = match unit.trim() {
        "ms" => 1.0,
        "s" => 1_000.0,
        "m" | "min" => 60_000.0,
        "h" => 3_600_000.0,
        _ => return Err(wrong()),
    };
    let millis = (number.parse::<f64>().map_err(|_| wrong())? * millis).round() as u64;
    Ok(quote!(::core::time::Duration::from_millis(#millis)))
}

/// Parses `"10/s"`, `"10/m"`, `"10/h"`, or a number per second, into the nanoseconds from one run
/// to the next.
fn rate(literal: &Lit) -> syn::Result<u64> {
    let wrong = || {
        let message = "a rate is \"10/s\", \"10/m\", \"10/h\", or a number per second";
        Error::new(literal.span(), message)
    };
    let text = match literal {
        Lit::Str(text) => text.value(),
        Lit::Int(number) => number.to_string(),
        Lit::Float(number) => number.to_string(),
        _ => return Err(wrong()),
    };
    let (count, unit) = text.split_once('/').unwrap_or((&text, "s"));
    let seconds = match unit.trim() {
        "s" => 1.0,
        "m" => 60.0,
        "h" => 3_600.0,
        _ => return Err(wrong()),
    };
    let count: f64 = count.trim().parse().map_err(|_| wrong())?;
    if count.is_nan() || count <= 0.0 {
        return Err(wrong());
    }
    Ok((seconds * 1e9 / count).round() as u64)
}

/// An argument of a job.
struct Parameter {
    name: Ident,
    kind: Type,
}

/// The types of a batch's messages.
struct Elements {
    /// The argument of a message.
    element: Type,
    /// The value of a message.
    value: Tokens,
    /// Whether the function returns a value for each message.
    has_values: bool,
    /// Whether a value is inside a `Result`.
    is_result: bool,
    /// Whether the whole output is inside a `Result`.
    fails_as_one: bool,
}

impl Elements {
    fn of(
        sig: &syn::Signature,
        taken: &[&Type],
        batch: &Batch,
        options: &JobOptions,
    ) -> syn::Result<Self> {
        if sig.asyncness.is_none() {
            let message = "a batch is an `async fn`: threads and processes run single jobs";
            return Err(Error::new(batch.span, message));
        }
        if let Some((_, key)) = options.keys.first() {
            let message = "a batch has one rate, for it runs messages of all keys";
            return Err(Error::new(key.span(), message));
        }
        let takes = "a batch has one argument, a `Vec` of the messages' arguments";
        let [kind] = taken else { return Err(Error::new(sig.inputs.span(), takes)) };
        let element = argument_of("Vec", kind).ok_or_else(|| Error::new(kind.span(), takes))?;
        let whole = match &sig.output {
            ReturnType::Default => None,
            ReturnType::Type(_, kind) => Some(&**kind),
        };
        let inner = whole.and_then(|kind| argument_of("Result", kind));
        let (fails_as_one, output) = (inner.is_some(), inner.or(whole));
        let of = |value: Tokens, has_values, is_result| Self {
            element: element.clone(),
            value,
            has_values,
            is_result,
            fails_as_one,
        };
        match output {
            None => Ok(of(quote!(()), false, false)),
            Some(Type::Tuple(none)) if none.elems.is_empty() => Ok(of(quote!(()), false, false)),
            Some(output) => match argument_of("Vec", output) {
                Some(each) => match argument_of("Result", each) {
                    Some(value) => Ok(of(quote!(#value), true, true)),
                    None => Ok(of(quote!(#each), true, false)),
                },
                None => {
                    let message =
                        "a batch returns nothing, or a `Vec` with the value of each message";
                    Err(Error::new(output.span(), message))
                }
            },
        }
    }
}

pub(crate) fn rewrite(function: ItemFn, options: JobOptions) -> syn::Result<Tokens> {
    let ItemFn { attrs, vis, sig, .. } = &function;
    let parameters = check(sig, &options)?;
    let with_name = |name: &'static str| {
        attrs.iter().filter(move |attribute| attribute.path().is_ident(name)).collect::<Vec<_>>()
    };
    let (cfgs, deprecated) = (with_name("cfg"), with_name("deprecated"));
    let summary = summary(&with_name("doc"));

    let job = &sig.ident;
    let bare = job.unraw().to_string();
    let jobs = options.krate.as_ref().map_or_else(|| quote!(::pikake::jobs), |path| quote!(#path));
    let name = match &options.name {
        Some(name) => quote!(#name),
        None => quote!(::core::concat!(::core::module_path!(), "::", #bare)),
    };
    let names: Vec<_> = parameters.iter().map(|parameter| &parameter.name).collect();
    // What the function takes, and what a message has.
    let taken: Vec<_> = parameters.iter().map(|parameter| &parameter.kind).collect();
    let batch = match &options.batch {
        Some(batch) => Some((batch, Elements::of(sig, &taken, batch, &options)?)),
        None => None,
    };
    let kinds: Vec<&Type> = match &batch {
        Some((_, elements)) => vec![&elements.element],
        None => taken.clone(),
    };
    let texts: Vec<_> = names.iter().map(|name| name.unraw().to_string()).collect();
    let (arguments, values) = match names.is_empty() {
        true => (quote!([(); 0]), quote!([])),
        false => (quote!((#(#kinds,)*)), quote!((#(#names,)*))),
    };
    let (value, is_result) = match &batch {
        Some((_, elements)) => (elements.value.clone(), elements.is_result),
        None => value_of(&sig.output),
    };
    let value_span = match &sig.output {
        ReturnType::Default => Span::call_site(),
        ReturnType::Type(_, kind) => kind.span(),
    };
    let (value, returned) = match workflow_of(&value) {
        Some(inner) => {
            let kind = quote!(#value);
            let returned = quote_spanned!(value_span=> (|__returned: #kind| {
                __jobs::__macros::completed::<#inner>(__returned)
            }));
            (inner, returned)
        }
        None => (value, quote_spanned!(value_span=> __jobs::__macros::returned)),
    };
    let finish = match is_result {
        true => quote_spanned!(value_span=> (|__result| {
            __jobs::__macros::returned_result(__result, #returned)
        })),
        false => returned,
    };
    let checks = kinds.iter().map(|kind| quote_spanned!(kind.span()=> is_sent::<#kind>();));
    let value_check = quote_spanned!(value_span=> is_sent::<#value>(););
    let is_async = sig.asyncness.is_some();
    let mut settings = options.settings.clone();
    let parameter = |name: &LitStr| match texts.iter().position(|text| *text == name.value()) {
        Some(index) => Ok(quote!(__jobs::Parameter::new(#index, #name))),
        None => Err(Error::new(name.span(), "no argument of the job has this name")),
    };
    for (field, name) in &options.keys {
        let (field, parameter) = (Ident::new(field, Span::call_site()), parameter(name)?);
        settings.push(quote!(__options.#field = ::core::option::Option::Some(#parameter);));
    }
    match (&options.unique_for, options.needs_unique) {
        (Some(length), _) => {
            let until = options.unique_until.iter();
            let by = options.unique_by.iter().map(parameter).collect::<syn::Result<Vec<_>>>()?;
            settings.push(quote! {
                __options.unique = ::core::option::Option::Some(
                    __jobs::Unique::new(#length) #(.until(__jobs::UntilWhen::#until))* #(.by(#by))*
                );
            });
        }
        (None, Some(span)) => {
            let message = "a unique job has `unique_for`: how long its lock lasts at most";
            return Err(Error::new(span, message));
        }
        (None, None) => {}
    }

    // Resolved where no variable of the program is in scope, for one may have the job's name.
    let mut function_name = job.clone();
    function_name.set_span(Span::mixed_site().located_at(job.span()));
    let read = quote! {
        let #values: #arguments =
            __jobs::__macros::read_arguments(__NAME, __PARAMETERS, __args, __kwargs)?;
    };
    let runner = match (is_async, options.process) {
        (true, _) if batch.is_some() => {
            let run = batch.iter().map(|(batch, elements)| {
                let (size, wait, element) = (&batch.size, &batch.wait, &elements.element);
                let each = match elements.has_values {
                    true => quote!(__jobs::__macros::each(__output, #finish)),
                    false => quote!({
                        let () = __output;
                        __jobs::__macros::all_done(__count)
                    }),
                };
                let output = match elements.fails_as_one {
                    true => {
                        quote!(#function_name(__elements).await.map_err(__jobs::__macros::failed)?)
                    }
                    false => quote!(#function_name(__elements).await),
                };
                quote! {
                    __jobs::__macros::RunBatch::new(
                        #size,
                        #wait,
                        |__args, __kwargs| {
                            #read
                            ::core::result::Result::Ok(::std::boxed::Box::new(#(#names)*))
                        },
                        |__elements| ::std::boxed::Box::pin(async move {
                            let __count = __elements.len();
                            let __elements = __jobs::__macros::elements::<#element>(__elements);
                            let __output = #output;
                            ::core::result::Result::Ok(#each)
                        }),
                    )
                }
            });
            quote!(__jobs::__macros::Runner::Batch(#(#run)*))
        }
        (true, _) => quote! {
            __jobs::__macros::Runner::Task(|__args, __kwargs| {
                #read
                ::core::result::Result::Ok(::std::boxed::Box::pin(async move {
                    #finish(#function_name(#(#names),*).await)
                }))
            })
        },
        (false, process) => {
            let runner = if process.is_some() { quote!(Process) } else { quote!(Thread) };
            quote! {
                __jobs::__macros::Runner::#runner(|__args, __kwargs| {
                    #read
                    ::core::result::Result::Ok(::std::boxed::Box::new(move || {
                        #finish(#function_name(#(#names),*))
                    }))
                })
            }
        }
    };
    let follower = parameters.split_first().map(|(_, rest)| {
        let first = kinds[0];
        let names: Vec<_> = rest.iter().map(|parameter| &parameter.name).collect();
        let kinds = rest.iter().map(|parameter| &parameter.kind);
        quote! {
            /// The job with all arguments but the first, which is the value of the job before it in
            /// a workflow.
            #[doc = #summary]
            #vis fn after(#(#names: #kinds),*) -> __jobs::Next<#first, #value> {
                __jobs::Next::of(&Self::JOB, &(#(#names,)*))
            }
        }
    });
    let about = format!(
        "The job of the function [`{bare}()`](fn@{job}): sends it to a worker, or registers it there."
    );
    Ok(quote! {
        #[allow(
            clippy::too_many_arguments,
            clippy::needless_pass_by_value,
            reason = "arguments of a message are owned, and as many as the message has"
        )]
        #function

        #[doc = #about]
        #[doc = #summary]
        #(#cfgs)*
        #(#deprecated)*
        #[allow(dead_code, non_camel_case_types, reason = "a type with the name of its function")]
        #[derive(::core::fmt::Debug)]
        #vis struct #job {
            _private: (),
        }

        #(#cfgs)*
        #[allow(
            deprecated,
            clippy::future_not_send,
            clippy::needless_pass_by_value,
            clippy::too_many_arguments,
            reason = "the function decides on these"
        )]
        const _: () = {
            use #jobs as __jobs;

            const __NAME: &::core::primitive::str = #name;
            const __PARAMETERS: &[&::core::primitive::str] = &[#(#texts),*];

            const _: fn() = || {
                fn is_sent<T: __jobs::__macros::Serialize + __jobs::__macros::DeserializeOwned>() {}
                #(#checks)*
                #value_check
            };

            impl #job {
                /// The job as a worker runs it, for `App::jobs`.
                #[doc = #summary]
                #vis const JOB: __jobs::Definition = {
                    #[allow(unused_mut, reason = "a job may have no options")]
                    let mut __options = __jobs::JobOptions::DEFAULT;
                    #(#settings)*
                    __jobs::Definition::new(__NAME, __options, #runner)
                        .with_parameters(__PARAMETERS)
                };

                /// A call with these arguments, for more settings before it is sent.
                #[doc = #summary]
                #vis fn with(#(#names: #kinds),*) -> __jobs::Call<#value> {
                    __jobs::Call::of(&Self::JOB, &(#(#names,)*))
                }

                #follower

                /// Sends the job; resolves once the broker has confirmed it.
                #[doc = #summary]
                #vis fn delay(#(#names: #kinds),*) -> impl ::core::future::Future<
                    Output = ::core::result::Result<__jobs::Handle<#value>, __jobs::SendError>,
                > {
                    Self::with(#(#names),*).send()
                }
            }
        };
    })
}

/// The type of the value of a job that returns a workflow.
fn workflow_of(output: &Tokens) -> Option<Tokens> {
    let output: Type = syn::parse2(output.clone()).ok()?;
    let value = argument_of("Workflow", &output).or_else(|| argument_of("Returns", &output))?;
    Some(quote!(#value))
}

/// The first paragraph of a job's documentation, and the targets of its links. Examples are left
/// out, or they would be tests of each function that has them.
fn summary(docs: &[&Attribute]) -> String {
    let literal = |attribute: &&Attribute| match &attribute.meta {
        Meta::NameValue(pair) => match &pair.value {
            Expr::Lit(ExprLit { lit: Lit::Str(text), .. }) => Some(text.value()),
            _ => None,
        },
        _ => None,
    };
    let text: Vec<_> = docs.iter().filter_map(literal).collect();
    let text = text.join("\n");
    let lines = text.lines().map(str::trim).skip_while(|line| line.is_empty());
    let paragraph = lines.clone().take_while(|line| !line.is_empty() && !line.starts_with("```"));
    let targets = lines.filter(|line| line.starts_with('[') && line.contains("]:"));
    paragraph.chain([""]).chain(targets).fold(String::new(), |all, line| all + "\n" + line)
}

fn check(sig: &syn::Signature, options: &JobOptions) -> syn::Result<Vec<Parameter>> {
    if !sig.generics.params.is_empty() {
        let message = "a job cannot be generic: its message carries its name, and no types";
        return Err(Error::new(sig.generics.span(), message));
    }
    let is_unsafe = |safety: &Safety| matches!(safety, Safety::Unsafe(_));
    let abi = sig.abi.as_ref().map(Spanned::span);
    if let Some(span) = abi.or_else(|| is_unsafe(&sig.safety).then(|| sig.safety.span())) {
        return Err(Error::new(span, "a job is an ordinary function"));
    }
    let wants_thread = options.blocking.or(options.process);
    if let (Some(_), Some(span)) = (sig.asyncness, wants_thread) {
        let message = "an `async fn` runs as a task; `blocking` and `process` are for a plain `fn`";
        return Err(Error::new(span, message));
    }
    if let (Some(_), Some(span)) = (options.blocking, options.process) {
        let message = "a job runs in a thread (`blocking`) or in a process (`process`)";
        return Err(Error::new(span, message));
    }
    if let ReturnType::Type(_, kind) = &sig.output {
        if let Type::ImplTrait(kind) = &**kind {
            return Err(Error::new(
                kind.span(),
                "a job's value is sent, so its type must be named",
            ));
        }
    }
    if sig.inputs.len() > MOST_ARGUMENTS {
        let message = "a job has 16 arguments at most; put them into a struct";
        return Err(Error::new(sig.inputs.span(), message));
    }
    sig.inputs.iter().map(parameter).collect()
}

fn parameter(input: &FnArg) -> syn::Result<Parameter> {
    let typed = match input {
        FnArg::Receiver(receiver) => {
            let message = "a job is a free function: all its arguments come in its message";
            return Err(Error::new(receiver.span(), message));
        }
        FnArg::Typed(typed) => typed,
    };
    if let Type::Reference(kind) = &*typed.ty {
        let message =
            "a job's arguments come from a message, so the job owns them (`String`, not `&str`)";
        return Err(Error::new(kind.span(), message));
    }
    if let Type::ImplTrait(kind) = &*typed.ty {
        let message = "a job's arguments come from a message, so their types must be named";
        return Err(Error::new(kind.span(), message));
    }
    let conditional = |attribute: &&Attribute| {
        ["cfg", "cfg_attr"].iter().any(|cfg| attribute.path().is_ident(cfg))
    };
    if let Some(attribute) = typed.attrs.iter().find(conditional) {
        let message =
            "a job's arguments cannot be conditional: a sender may be built with other features";
        return Err(Error::new(attribute.span(), message));
    }
    match &*typed.pat {
        Pat::Ident(pattern) => {
            Ok(Parameter { name: pattern.ident.clone(), kind: (*typed.ty).clone() })
        }
        other => {
            let message = "a job's arguments must have names, since they can be sent by name";
            Err(Error::new(other.span(), message))
        }
    }
}

#[cfg(test)]
#[path = "job_tests.rs"]
mod tests;
