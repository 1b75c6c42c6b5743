"""`momatch label`: a page to label images on (docs/labeling.md).

`answers` keeps what a person said in a manifest, `model` fits what it says about the rest, `session` joins the two, `server`
shows it in a browser.
"""
