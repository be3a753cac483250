// Wide tables scroll sideways; with the keyboard too, once they can have the focus.
document$.subscribe(() => {
  for (const each of document.querySelectorAll(".md-typeset__scrollwrap, .md-typeset pre > code")) {
    each.tabIndex = 0
  }
})
