//! Tests of the whole project: dependencies between its crates, the names of the facade, the
//! examples, the book, the examples of the documentation, and its front page.

#[path = "../support/mod.rs"]
mod support;

mod book;
mod doc_examples;
mod examples;
mod facade;
mod floors;
mod front_page;
mod glossary;
mod packages;
