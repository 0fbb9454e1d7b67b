"""Pages and checks of the documentation: generated references, links, the site. Development only."""
