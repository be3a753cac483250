document$.subscribe(() => {
  // Wide tables and code scroll sideways; with the keyboard too, once they can have the focus.
  for (const each of document.querySelectorAll(".md-typeset__scrollwrap, .md-typeset pre > code")) {
    each.tabIndex = 0
  }
  // So do pictures on phones.
  for (const each of document.querySelectorAll(".md-typeset p:has(> img)")) {
    if (each.scrollWidth > each.clientWidth) each.tabIndex = 0
  }
  // Options such as --hang-timeout stay in one line, and wrap between words only.
  for (const each of document.querySelectorAll(".md-typeset :is(p, li, td) code:not(pre code)")) {
    if (each.childElementCount === 0) each.replaceChildren(...words(each.textContent))
  }
})

function words(text) {
  return text.split(/(\s+)/).map((word) => {
    if (!word.trim() || word.length > 24) return word
    const whole = document.createElement("span")
    whole.className = "whole"
    whole.textContent = word
    return whole
  })
}
