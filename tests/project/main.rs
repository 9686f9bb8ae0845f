//! Tests of the whole project: dependencies between its crates and files, its size, the names of
//! the facade, the examples, the book, the examples of the documentation, and its front page.

#[path = "../support/mod.rs"]
mod support;

mod book;
mod budget;
mod circles;
mod comments;
mod doc_examples;
mod examples;
mod expand;
mod facade;
mod floors;
mod front_page;
mod glossary;
mod imports;
mod layers;
mod names;
mod packages;
mod public_items;
mod tracked;
mod weight;

use std::path::Path;

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// Whether the lists of what is allowed are to be written, and not compared.
fn is_renewed() -> bool {
    std::env::var_os("PIKAKE_RENEW").is_some()
}
