//! The methods of a broker around another one that the other one answers.

/// Defines methods that return the future of the inner broker's.
macro_rules! handed_on {
    (
        |$this:ident| $inner:expr;
        $(fn $method:ident($($argument:ident: $type:ty),*) -> $output:ty;)+
    ) => {
        $(fn $method<'a>(&'a self $(, $argument: $type)*) -> LocalFuture<'a, $output> {
            let $this = self;
            $inner.$method($($argument),*)
        })+
    };
}

pub(crate) use handed_on;
